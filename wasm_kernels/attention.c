// ATTENTION and ATTENTION_MERGE: who computes which query rows and positions.
//
// The query heads that share a KV head, times the tokens, make rows; TILE rows are computed at a time. With few tokens
// the positions are split too, at fixed places, and each split leaves its sums in scratch: [split][token][head] of
// head_dim + 4 floats: m, l, 2 unused, o.
#include "attention.h"

#include "quantize.h"
#include "scratch.h"

typedef struct {
  const AttentionOp *op;
  Step step;
  uint32_t group;          // query heads a KV head
  uint32_t rows, tiles;    // of a KV head
  uint32_t first, splits;  // the first split that any token sees, and how many there are
} Work;

// First position that the token at `position` sees.
static uint32_t window_start(uint32_t window, uint32_t position) {
  return window && position + 1 > window ? position + 1 - window : 0;
}

static Work work_of(const AttentionOp *op, Step step) {
  Work work = {.op = op, .step = step, .group = op->heads / op->kv_heads};
  work.rows = step.tokens * work.group;
  work.tiles = div_up(work.rows, TILE);
  work.first = window_start(op->window, step.pos) / SPLIT;
  work.splits = (step.pos + step.tokens - 1) / SPLIT + 1 - work.first;
  return work;
}

static float *partial(const Work *work, uint32_t split, uint32_t token, uint32_t head) {
  const uint32_t row = (split * work->step.tokens + token) * work->op->heads + head;
  return f32_at(work->op->scratch) + row * (work->op->head_dim + 4);
}

// Fill a tile's queries and ranges; returns the rows to compute: 1, 2 or 4.
static uint32_t start_tile(const Work *work, Tile *tile, uint32_t kv_head, uint32_t index, Range *positions) {
  const AttentionOp *op = work->op;
  const uint32_t count = min_u32(TILE, work->rows - index * TILE), computed = count == 3 ? 4 : count;
  *positions = (Range){0xffffffffu, 0};
  for (uint32_t r = 0; r < computed; r++) {
    const uint32_t row = index * TILE + min_u32(r, count - 1), token = row / work->group;
    const float *q = f32_at(op->q) + (token * op->heads + kv_head * work->group + row % work->group) * op->head_dim;
    const float unit = op->kv == KV_F16 ? F16_UNSCALE : 1.0f;
    for (uint32_t d = 0; d < op->head_dim; d += 4) {
      store(&tile->q[r][d], mul(load(q + d), splat(unit)));
      store(&tile->o[r][d], splat(0));
    }
    tile->m[r] = -__builtin_inff();
    tile->l[r] = 0;
    tile->end[r] = work->step.pos + token + 1;
    tile->begin[r] = window_start(op->window, tile->end[r] - 1);
    positions->begin = min_u32(positions->begin, tile->begin[r]);
    positions->end = max_u32(positions->end, tile->end[r]);
  }
  return computed;
}

static void finish_tile(const Work *work, const Tile *tile, uint32_t kv_head, uint32_t index, uint32_t split) {
  const AttentionOp *op = work->op;
  for (uint32_t r = 0; r < min_u32(TILE, work->rows - index * TILE); r++) {
    const uint32_t row = index * TILE + r, token = row / work->group, head = kv_head * work->group + row % work->group;
    float *dst = f32_at(op->dst) + (token * op->heads + head) * op->head_dim, factor = 1.0f / tile->l[r];
    if (work->step.tokens <= SPLIT_TOKENS) {
      float *out = partial(work, split, token, head);
      out[0] = tile->m[r];
      out[1] = tile->l[r];
      dst = out + 4;
      factor = 1.0f;
    }
    for (uint32_t d = 0; d < op->head_dim; d += 4) store(dst + d, mul(load(&tile->o[r][d]), splat(factor)));
  }
}

void op_attention(const AttentionOp *op, Step step, Thread th) {
  if (op->head_dim > MAX_HEAD_DIM || sizeof(Tile) > SCRATCH_BYTES) __builtin_trap();
  const Work work = work_of(op, step);
  const Keys keys = {(const Cache *)bytes_at(op->cache), op->kv_heads, op->head_dim, op->kv};
  const uint32_t splits = step.tokens <= SPLIT_TOKENS ? work.splits : 1;
  Tile *tile = thread_scratch(th);
  Queue queue = {.units = op->kv_heads * work.tiles * splits, .grain = 1};
  while (take(&queue, th)) {
    const uint32_t item = queue.range.begin, split = item % splits, index = item / splits % work.tiles,
                   kv_head = item / splits / work.tiles;
    Range positions;
    const uint32_t rows = start_tile(&work, tile, kv_head, index, &positions);
    if (step.tokens <= SPLIT_TOKENS) {
      positions.begin = max_u32(positions.begin, (work.first + split) * SPLIT);
      positions.end = min_u32(positions.end, (work.first + split + 1) * SPLIT);
    }
    attend(tile, &keys, kv_head, rows, positions.begin, positions.end);
    finish_tile(&work, tile, kv_head, index, split);
  }
}

// Joins the splits of one token's head.
static void merge_head(const Work *work, uint32_t token, uint32_t head) {
  const AttentionOp *op = work->op;
  float *dst = f32_at(op->dst) + (token * op->heads + head) * op->head_dim;
  float m = -__builtin_inff(), l = 0;
  for (uint32_t s = 0; s < work->splits; s++) {
    const float *part = partial(work, s, token, head);
    if (part[0] > m) m = part[0];
  }
  for (uint32_t s = 0; s < work->splits; s++) {
    const float *part = partial(work, s, token, head);
    const float weight = part[1] > 0 ? exp1(part[0] - m) : 0;
    l += weight * part[1];
    for (uint32_t d = 0; d < op->head_dim; d += 4) {
      v128_t sum = s ? load(dst + d) : splat(0);
      store(dst + d, madd(load(part + 4 + d), splat(weight), sum));
    }
  }
  for (uint32_t d = 0; d < op->head_dim; d += 4) store(dst + d, mul(load(dst + d), splat(1.0f / l)));
}

// A unit is as many heads as make whole quantization blocks.
void op_attention_merge(const AttentionMergeOp *merge, Step step, Thread th) {
  const AttentionOp *op = (const AttentionOp *)merge;  // the same operands
  const Work work = work_of(op, step);
  const uint32_t width = op->heads * op->head_dim;
  uint32_t heads = 1;
  while (op->dst_q && heads * op->head_dim % QBLOCK) heads++;
  const uint32_t units = div_up(op->heads, heads);
  Range items = share(step.tokens * units, th);
  for (uint32_t item = items.begin; item < items.end; item++) {
    const uint32_t token = item / units, head = item % units * heads, end = min_u32(head + heads, op->heads);
    if (step.tokens <= SPLIT_TOKENS) {
      for (uint32_t h = head; h < end; h++) merge_head(&work, token, h);
    }
    if (op->dst_q) {
      const uint32_t first = head * op->head_dim;
      const float *x = f32_at(op->dst) + token * width + first;
      quantize(bytes_at(op->dst_q + token * quantized_bytes(width)), width, first, x, end * op->head_dim - first);
    }
  }
}
