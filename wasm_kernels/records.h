// Made from py/oxinfer_web/program/records.py by the Makefile; do not edit.
#pragma once
#include <stdint.h>

#define RECORD_WORDS 32u
#define PAGE 128u
#define SPLIT 128u
#define SPLIT_TOKENS 4u
#define SKIP_ROW 4294967295u
#define NO_ID 4294967295u
#define MAX_TOP_K 256u
#define MAX_THREADS 16u
#define FLAG_BARRIER 1u
#define FLAG_LAST 2u

enum { QUANT_BF16 = 0, QUANT_Q8 = 1, QUANT_Q4 = 2 };
enum { ACT_GELU_TANH = 0, ACT_SILU = 1 };
enum { KV_F32 = 0, KV_F16 = 1 };
enum { BIND_BUFFER = 0, BIND_KEY = 1, BIND_VALUE = 2 };
enum { OP_EMBED = 1, OP_ROPE_TABLE = 2, OP_NORM = 3, OP_LINEAR = 4, OP_GATED = 5, OP_HEADS = 6, OP_ATTENTION = 7, OP_ATTENTION_MERGE = 8, OP_ACT_MUL = 9, OP_SELECT_LAST = 10, OP_SOFTCAP = 11, OP_TOPK = 12, OP_TOPK_MERGE = 13, OP_REPACK = 14 };

// dst[t] = dequantize(row ids[t] of values/scales) * scale, f32 [T, cols]. ids: u32 [T]; SKIP_ROW: no change.
typedef struct {
  uint32_t code, flags;
  uint32_t dst;
  uint32_t values;
  uint32_t scales;
  uint32_t ids;
  uint32_t cols;
  uint32_t quant;
  float scale;
} EmbedOp;

// dst[t] = cos(p * inv_freq) then sin(p * inv_freq), f32 [T, 2 * pairs], p = pos + t. inv_freq: f32 [pairs].
typedef struct {
  uint32_t code, flags;
  uint32_t dst;
  uint32_t inv_freq;
  uint32_t pairs;
} RopeTableOp;

// For each of `rows` rows of n in a token: y = src; if norm: y /= sqrt(mean(y^2) + eps), times weight + offset
// where weight (bf16 [n]) is given; dst = (residual + y) * scale. residual, dst and dst_q may be 0; dst may be src
// or residual. dst_q covers the token's rows * n columns.
typedef struct {
  uint32_t code, flags;
  uint32_t dst;
  uint32_t dst_q;
  uint32_t src;
  uint32_t residual;
  uint32_t weight;
  uint32_t n;
  uint32_t rows;
  uint32_t norm;
  float eps;
  float offset;
  float scale;
} NormOp;

// dst_i = src W_i^T for count (1 to 3) repacked weights; bf16 weights read src (f32), Q8 and Q4 read src_q.
typedef struct {
  uint32_t code, flags;
  uint32_t src;
  uint32_t src_q;
  uint32_t n_in;
  uint32_t count;
  uint32_t values0;
  uint32_t scales0;
  uint32_t dst0;
  uint32_t n_out0;
  uint32_t quant0;
  uint32_t values1;
  uint32_t scales1;
  uint32_t dst1;
  uint32_t n_out1;
  uint32_t quant1;
  uint32_t values2;
  uint32_t scales2;
  uint32_t dst2;
  uint32_t n_out2;
  uint32_t quant2;
} LinearOp;

// dst = act(src G^T) * (src U^T), f32 [T, n_out]; dst or dst_q may be 0 (dst_q needs n_out % 32 == 0).
typedef struct {
  uint32_t code, flags;
  uint32_t src;
  uint32_t src_q;
  uint32_t n_in;
  uint32_t n_out;
  uint32_t gate_values;
  uint32_t gate_scales;
  uint32_t up_values;
  uint32_t up_scales;
  uint32_t quant;
  uint32_t act;
  uint32_t dst;
  uint32_t dst_q;
} GatedOp;

// For each head of src f32 [T, heads * head_dim]: rms norm over head_dim if norm (weight bf16 [head_dim] or 0),
// rope by the table if rope, times scale; to dst (bind BUFFER; may be src) or into the cache as key or value at
// position pos + t.
typedef struct {
  uint32_t code, flags;
  uint32_t dst;
  uint32_t cache;
  uint32_t src;
  uint32_t bind;
  uint32_t heads;
  uint32_t head_dim;
  uint32_t weight;
  uint32_t norm;
  uint32_t rope;
  float eps;
  float offset;
  float scale;
  uint32_t kv;
} HeadsOp;

// dst = softmax(q K^T) V, causal, for f32 q [T, heads * head_dim] (already scaled); window > 0: only the last
// `window` positions, the token's own included. Few tokens: partial results by SPLIT positions.
typedef struct {
  uint32_t code, flags;
  uint32_t dst;
  uint32_t dst_q;
  uint32_t q;
  uint32_t cache;
  uint32_t scratch;
  uint32_t heads;
  uint32_t kv_heads;
  uint32_t head_dim;
  uint32_t window;
  uint32_t kv;
} AttentionOp;

// Joins the partial results of the ATTENTION before it, and writes dst_q.
typedef struct {
  uint32_t code, flags;
  uint32_t dst;
  uint32_t dst_q;
  uint32_t q;
  uint32_t cache;
  uint32_t scratch;
  uint32_t heads;
  uint32_t kv_heads;
  uint32_t head_dim;
  uint32_t window;
  uint32_t kv;
} AttentionMergeOp;

// dst[t] = act(gate[t]) * up[t], rows of n; up's rows are up_stride apart.
typedef struct {
  uint32_t code, flags;
  uint32_t dst;
  uint32_t dst_q;
  uint32_t gate;
  uint32_t up;
  uint32_t n;
  uint32_t up_stride;
  uint32_t act;
} ActMulOp;

// dst[0] = src[T - 1], rows of n.
typedef struct {
  uint32_t code, flags;
  uint32_t dst;
  uint32_t src;
  uint32_t n;
} SelectLastOp;

// x = tanh(x / cap) * cap in place, f32 [T, n].
typedef struct {
  uint32_t code, flags;
  uint32_t x;
  uint32_t n;
  float cap;
} SoftcapOp;

// The k largest of each row of logits f32 [T, n], by value, ties by lower index; partial results in scratch.
typedef struct {
  uint32_t code, flags;
  uint32_t logits;
  uint32_t n;
  uint32_t k;
  uint32_t scratch;
  uint32_t dst;
} TopkOp;

// dst[t] = u32 ids[k], f32 values[k] in falling order, f32 max, f32 log(sum(exp(row))); NO_ID and NaN in all of
// them where the row has a NaN or no finite largest.
typedef struct {
  uint32_t code, flags;
  uint32_t logits;
  uint32_t n;
  uint32_t k;
  uint32_t scratch;
  uint32_t dst;
} TopkMergeOp;

// Turns a weight's plain rows into the layout of LINEAR and GATED, in place, with room for padded_rows(rows).
typedef struct {
  uint32_t code, flags;
  uint32_t values;
  uint32_t scales;
  uint32_t rows;
  uint32_t cols;
  uint32_t quant;
} RepackOp;
