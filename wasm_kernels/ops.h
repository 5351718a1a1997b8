// What the kernels share: the step, the split of work between threads, and each op's entry point.
#pragma once
#include "records.h"
#include "vec.h"

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

INLINE uint32_t min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }
INLINE uint32_t max_u32(uint32_t a, uint32_t b) { return a > b ? a : b; }
INLINE uint32_t div_up(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

// Units of work that an op's threads share out. First each takes its share of the first `fixed` units, all at once; the
// others go, `grain` at a time, to whichever thread is free, so that none waits long for a slower or interrupted one:
//   Queue queue = {.units = ..., .grain = 1};
//   while (take(&queue, th)) ... queue.range ...
// All threads of an op must ask until there is no more. Without shared memory, where one thread plays all of them, they
// take turns.
typedef struct {
  uint32_t units, fixed, grain, turns;
  Range range;
} Queue;

INLINE int take(Queue *queue, Thread th) {
  const uint32_t turn = queue->turns++;
  if (queue->fixed && turn == 0) {
    queue->range = share(queue->fixed, th);
    return 1;
  }
#ifdef __wasm_atomics__
  const uint32_t grains = __atomic_fetch_add(th.taken, 1, __ATOMIC_RELAXED);
#else
  const uint32_t grains = th.tid + th.n * (queue->fixed ? turn - 1 : turn);
#endif
  const uint32_t begin = queue->fixed + grains * queue->grain;
  queue->range = (Range){begin, min_u32(begin + queue->grain, queue->units)};
  return begin < queue->units;
}

// Memory that a thread is going to read.
typedef struct {
  const uint8_t *at, *end;
} Ahead;

// Kernel memory at an address of a record.
INLINE float *f32_at(uint32_t address) { return (float *)address; }
INLINE uint8_t *bytes_at(uint32_t address) { return (uint8_t *)address; }
INLINE uint16_t *u16_at(uint32_t address) { return (uint16_t *)address; }
INLINE uint32_t *u32_at(uint32_t address) { return (uint32_t *)address; }

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

// The weights that a thread begins with when one token is multiplied.
Ahead linear_ahead(const LinearOp *op, Thread th);
Ahead gated_ahead(const GatedOp *op, Thread th);
