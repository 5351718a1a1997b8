// Ops on whole rows, element by element: EMBED, ACT_MUL, SELECT_LAST, SOFTCAP.
#include "mathf.h"
#include "ops.h"
#include "quantize.h"
#include "scratch.h"

static void embed_bf16(float *dst, const uint16_t *row, uint32_t cols, float scale) {
  for (uint32_t i = 0; i < cols; i += 4) {
    store_first(dst + i, mul(load_bf16_first(row + i, cols - i), splat(scale)), cols - i);
  }
}

static void embed_q8(float *dst, const int8_t *row, const float *scales, uint32_t cols, float scale) {
  for (uint32_t i = 0; i < cols; i += 8) {
    v128_t q = wasm_i16x8_load8x8(row + i), s = splat(scales[i / QBLOCK]);
    v128_t low = wasm_f32x4_convert_i32x4(wasm_i32x4_extend_low_i16x8(q));
    v128_t high = wasm_f32x4_convert_i32x4(wasm_i32x4_extend_high_i16x8(q));
    store(dst + i, mul(mul(low, s), splat(scale)));
    store(dst + i + 4, mul(mul(high, s), splat(scale)));
  }
}

static void embed_q4(float *dst, const uint8_t *row, const uint16_t *scales, uint32_t cols, float scale) {
  for (uint32_t b = 0; b < cols / QBLOCK; b++, dst += QBLOCK, row += QBLOCK / 2) {
    // load_f16 reads 4: the last block's scale is read alone
    uint16_t last[4] = {scales[b], 0, 0, 0};
    v128_t s = wasm_i32x4_shuffle(load_f16(last), load_f16(last), 0, 0, 0, 0);
    for (uint32_t i = 0; i < QBLOCK / 2; i++) {
      dst[i] = (float)((row[i] & 15) - 8);
      dst[i + 16] = (float)((row[i] >> 4) - 8);
    }
    for (uint32_t i = 0; i < QBLOCK; i += 4) store(dst + i, mul(mul(load(dst + i), s), splat(scale)));
  }
}

void op_embed(const EmbedOp *op, Step step, Thread th) {
  const uint32_t *ids = u32_at(op->ids);
  const uint32_t nb = op->cols / QBLOCK;
  Range tokens = share(step.tokens, th);
  for (uint32_t t = tokens.begin; t < tokens.end; t++) {
    float *dst = f32_at(op->dst) + t * op->cols;
    const uint32_t id = ids[t];
    if (id == SKIP_ROW) continue;
    if (op->quant == QUANT_BF16) {
      embed_bf16(dst, u16_at(op->values) + id * op->cols, op->cols, op->scale);
    } else if (op->quant == QUANT_Q8) {
      embed_q8(dst, (int8_t *)bytes_at(op->values) + id * op->cols, f32_at(op->scales) + id * nb, op->cols, op->scale);
    } else {
      embed_q4(dst, bytes_at(op->values) + id * (op->cols / 2), u16_at(op->scales) + id * nb, op->cols, op->scale);
    }
  }
}

void op_act_mul(const ActMulOp *op, Step step, Thread th) {
  Range tokens = share(step.tokens, th);
  if (!op->dst && op->n * 4 > SCRATCH_BYTES) __builtin_trap();
  for (uint32_t t = tokens.begin; t < tokens.end; t++) {
    const float *gate = f32_at(op->gate) + t * op->n, *up = f32_at(op->up) + t * op->up_stride;
    float *dst = op->dst ? f32_at(op->dst) + t * op->n : thread_scratch(th);
    for (uint32_t i = 0; i < op->n; i += 4) {
      uint32_t left = op->n - i;
      store_first(dst + i, mul(activate4(load_first(gate + i, left), op->act), load_first(up + i, left)), left);
    }
    if (op->dst_q) quantize(bytes_at(op->dst_q + t * quantized_bytes(op->n)), op->n, 0, dst, op->n);
  }
}

void op_select_last(const SelectLastOp *op, Step step, Thread th) {
  Range cols = share(op->n, th);
  const float *src = f32_at(op->src) + step.last_row * op->n;
  if (cols.begin < cols.end) {
    __builtin_memmove(f32_at(op->dst) + cols.begin, src + cols.begin, (cols.end - cols.begin) * 4);
  }
}

void op_softcap(const SoftcapOp *op, Step step, Thread th) {
  const uint32_t n = step.tokens * op->n;
  const v128_t cap = splat(op->cap), inverse = splat(1.0f / op->cap);
  float *x = f32_at(op->x);
  Range quads = share(div_up(n, 4), th);
  for (uint32_t i = quads.begin * 4; i < quads.end * 4; i += 4) {
    store_first(x + i, mul(tanh4(mul(load_first(x + i, n - i), inverse)), cap), n - i);
  }
}
