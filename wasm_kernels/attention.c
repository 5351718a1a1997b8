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
} Plan;

// First position that the token at `position` sees.
static uint32_t window_start(uint32_t window, uint32_t position) {
  return window && position + 1 > window ? position + 1 - window : 0;
}

static Plan plan_of(const AttentionOp *op, Step step) {
  Plan plan = {.op = op, .step = step, .group = op->heads / op->kv_heads};
  plan.rows = step.tokens * plan.group;
  plan.tiles = div_up(plan.rows, TILE);
  plan.first = window_start(op->window, step.pos) / SPLIT;
  plan.splits = (step.pos + step.tokens - 1) / SPLIT + 1 - plan.first;
  return plan;
}

static float *partial(const Plan *plan, uint32_t split, uint32_t token, uint32_t head) {
  const uint32_t row = (split * plan->step.tokens + token) * plan->op->heads + head;
  return f32_at(plan->op->scratch) + row * (plan->op->head_dim + 4);
}

// Fill a tile's queries and ranges; returns the rows to compute: 1, 2 or 4.
static uint32_t start_tile(const Plan *plan, Tile *tile, uint32_t kv_head, uint32_t index, Range *positions) {
  const AttentionOp *op = plan->op;
  const uint32_t count = min_u32(TILE, plan->rows - index * TILE), computed = count == 3 ? 4 : count;
  *positions = (Range){0xffffffffu, 0};
  for (uint32_t r = 0; r < computed; r++) {
    const uint32_t row = index * TILE + min_u32(r, count - 1), token = row / plan->group;
    const float *q = f32_at(op->q) + (token * op->heads + kv_head * plan->group + row % plan->group) * op->head_dim;
    const float unit = op->kv == KV_F16 ? F16_UNSCALE : 1.0f;
    for (uint32_t d = 0; d < op->head_dim; d += 4) {
      store(&tile->q[r][d], mul(load(q + d), splat(unit)));
      store(&tile->o[r][d], splat(0));
    }
    tile->m[r] = -__builtin_inff();
    tile->l[r] = 0;
    tile->end[r] = plan->step.pos + token + 1;
    tile->begin[r] = window_start(op->window, tile->end[r] - 1);
    positions->begin = min_u32(positions->begin, tile->begin[r]);
    positions->end = max_u32(positions->end, tile->end[r]);
  }
  return computed;
}

static void finish_tile(const Plan *plan, const Tile *tile, uint32_t kv_head, uint32_t index, uint32_t split) {
  const AttentionOp *op = plan->op;
  for (uint32_t r = 0; r < min_u32(TILE, plan->rows - index * TILE); r++) {
    const uint32_t row = index * TILE + r, token = row / plan->group, head = kv_head * plan->group + row % plan->group;
    float *dst = f32_at(op->dst) + (token * op->heads + head) * op->head_dim, factor = 1.0f / tile->l[r];
    if (plan->step.tokens <= SPLIT_TOKENS) {
      float *out = partial(plan, split, token, head);
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
  const Plan plan = plan_of(op, step);
  const Keys keys = {(const Cache *)bytes_at(op->cache), op->kv_heads, op->head_dim, op->kv};
  const uint32_t splits = step.tokens <= SPLIT_TOKENS ? plan.splits : 1;
  Tile *tile = thread_scratch(th);
  Queue queue = {.units = op->kv_heads * plan.tiles * splits, .grain = 1};
  while (take(&queue, th)) {
    const uint32_t item = queue.range.begin, split = item % splits, index = item / splits % plan.tiles,
                   kv_head = item / splits / plan.tiles;
    Range positions;
    const uint32_t rows = start_tile(&plan, tile, kv_head, index, &positions);
    if (step.tokens <= SPLIT_TOKENS) {
      positions.begin = max_u32(positions.begin, (plan.first + split) * SPLIT);
      positions.end = min_u32(positions.end, (plan.first + split + 1) * SPLIT);
    }
    attend(tile, &keys, kv_head, rows, positions.begin, positions.end);
    finish_tile(&plan, tile, kv_head, index, split);
  }
}

// Joins the splits of one token's head.
static void merge_head(const Plan *plan, uint32_t token, uint32_t head) {
  const AttentionOp *op = plan->op;
  float *dst = f32_at(op->dst) + (token * op->heads + head) * op->head_dim;
  float m = -__builtin_inff(), l = 0;
  for (uint32_t s = 0; s < plan->splits; s++) {
    const float *part = partial(plan, s, token, head);
    if (part[0] > m) m = part[0];
  }
  for (uint32_t s = 0; s < plan->splits; s++) {
    const float *part = partial(plan, s, token, head);
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
  const Plan plan = plan_of(op, step);
  const uint32_t width = op->heads * op->head_dim;
  uint32_t heads = 1;
  while (op->dst_q && heads * op->head_dim % QBLOCK) heads++;
  const uint32_t units = div_up(op->heads, heads);
  Range items = share(step.tokens * units, th);
  for (uint32_t item = items.begin; item < items.end; item++) {
    const uint32_t token = item / units, head = item % units * heads, end = min_u32(head + heads, op->heads);
    if (step.tokens <= SPLIT_TOKENS) {
      for (uint32_t h = head; h < end; h++) merge_head(&plan, token, h);
    }
    if (op->dst_q) {
      const uint32_t first = head * op->head_dim;
      const float *x = f32_at(op->dst) + token * width + first;
      quantize(bytes_at(op->dst_q + token * quantized_bytes(width)), width, first, x, end * op->head_dim - first);
    }
  }
}
