// What the kernels share: the step, the split of work between threads, scratch memory, and each op's entry point.
#pragma once
#include "records.h"
#include "vec.h"

#define MAX_COLUMNS 32768u        // of a weight: what REPACK's scratch holds
#define SCRATCH_BYTES (1u << 20)  // a thread's: a panel of MAX_COLUMNS bf16

// What an op has to know of the step. With FLAG_LAST: one token, the step's last.
typedef struct {
  uint32_t tokens;    // rows of the op's activation buffers
  uint32_t pos;       // position of the first of them
  uint32_t rope_row;  // the first one's row in the rope table
  uint32_t last_row;  // the last token's row in a buffer of the whole step
} Step;

// Thread tid of n, and how many units of the op's work have been taken by all of them.
typedef struct {
  uint32_t tid, n;
  uint32_t *taken;
} Thread;

typedef struct {
  uint32_t begin, end;
} Range;

// A thread's contiguous share of `units` units of work.
INLINE Range share(uint32_t units, Thread th) {
  return (Range){(uint32_t)((uint64_t)units * th.tid / th.n), (uint32_t)((uint64_t)units * (th.tid + 1) / th.n)};
}

// Units of work that whichever thread is free takes next, so that none waits long for a slower or interrupted one:
//   Queue queue = {.units = ...};
//   while (take(&queue, th)) ... queue.unit ...
// All threads of an op must ask until there is no more. Without shared memory, where one thread plays all of them, they
// take turns.
typedef struct {
  uint32_t units, unit, turns;
} Queue;

INLINE int take(Queue *queue, Thread th) {
#ifdef __wasm_atomics__
  queue->unit = __atomic_fetch_add(th.taken, 1, __ATOMIC_RELAXED);
#else
  queue->unit = th.tid + th.n * queue->turns++;
#endif
  return queue->unit < queue->units;
}

INLINE uint32_t min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }
INLINE uint32_t max_u32(uint32_t a, uint32_t b) { return a > b ? a : b; }
INLINE uint32_t div_up(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

// Kernel memory at an address of a record.
INLINE float *f32_at(uint32_t address) { return (float *)address; }
INLINE uint8_t *bytes_at(uint32_t address) { return (uint8_t *)address; }
INLINE uint16_t *u16_at(uint32_t address) { return (uint16_t *)address; }
INLINE uint32_t *u32_at(uint32_t address) { return (uint32_t *)address; }

// SCRATCH_BYTES that only this thread uses, within one op.
void *thread_scratch(Thread th);

void op_embed(const EmbedOp *op, Step step, Thread th);
void op_rope_table(const RopeTableOp *op, Step step, Thread th);
void op_norm(const NormOp *op, Step step, Thread th);
void op_linear(const LinearOp *op, Step step, Thread th);
void op_gated(const GatedOp *op, Step step, Thread th);
void op_heads(const HeadsOp *op, Step step, Thread th);
void op_attention(const AttentionOp *op, Step step, Thread th);
void op_attention_merge(const AttentionMergeOp *op, Step step, Thread th);
void op_act_mul(const ActMulOp *op, Step step, Thread th);
void op_select_last(const SelectLastOp *op, Step step, Thread th);
void op_softcap(const SoftcapOp *op, Step step, Thread th);
void op_topk(const TopkOp *op, Step step, Thread th);
void op_topk_merge(const TopkMergeOp *op, Step step, Thread th);
void op_repack(const RepackOp *op, Thread th);
