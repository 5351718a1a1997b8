// TOPK: the largest logits of each row. The row is cut into CHUNKS, whatever the number of threads, so that the sum of
// exponentials does not depend on it; each chunk keeps its k largest in a heap, TOPK_MERGE joins the chunks.
#include "mathf.h"
#include "ops.h"

#define CHUNKS MAX_THREADS

typedef struct {
  uint32_t id;
  float value;
} Candidate;

// In scratch, [row][chunk]: k candidates in falling order (NO_ID where the chunk has fewer), then maximum and sum.
static Candidate *partial(uint32_t scratch, uint32_t k, uint32_t row, uint32_t chunk) {
  return (Candidate *)scratch + (row * CHUNKS + chunk) * (k + 2);
}

INLINE int better(Candidate a, Candidate b) { return a.value > b.value || (a.value == b.value && a.id < b.id); }

// Restore the heap (worst candidate at 0) of n below i, after heap[i] changed for the better.
static void sift_down(Candidate *heap, uint32_t i, uint32_t n) {
  Candidate moved = heap[i];
  for (uint32_t child; (child = 2 * i + 1) < n; i = child) {
    if (child + 1 < n && better(heap[child], heap[child + 1])) child++;
    if (!better(moved, heap[child])) break;
    heap[i] = heap[child];
  }
  heap[i] = moved;
}

// Whether any of the 16 values at x is greater than `threshold`.
INLINE int any_above(const float *x, float threshold) {
  v128_t a = wasm_f32x4_pmax(load(x), load(x + 4)), b = wasm_f32x4_pmax(load(x + 8), load(x + 12));
  return wasm_v128_any_true(wasm_f32x4_gt(wasm_f32x4_pmax(a, b), splat(threshold)));
}

// The k largest of x[range] into heap, in falling order; values up to `floor` may be left out, unless it is -inf.
static void largest(const float *x, Range range, uint32_t k, float floor, Candidate *heap) {
  for (uint32_t i = 0; i < k; i++) heap[i] = (Candidate){NO_ID, -__builtin_inff()};
  for (uint32_t i = range.begin; i < range.end; i += 16) {
    const uint32_t end = min_u32(i + 16, range.end);
    const float worst = heap[0].value > floor ? heap[0].value : floor;
    // equal values come with a higher id and lose, but for -inf against empty places
    const int full = heap[0].id != NO_ID || floor > -__builtin_inff();
    if (full && end == i + 16 && !any_above(x + i, worst)) continue;
    for (uint32_t j = i; j < end; j++) {
      Candidate c = {j, x[j]};
      if (better(c, heap[0]) && (!full || c.value > floor)) {
        heap[0] = c;
        sift_down(heap, 0, k);
      }
    }
  }
  for (uint32_t n = k; n-- > 1;) {
    Candidate worst = heap[0];
    heap[0] = heap[n];
    heap[n] = worst;
    sift_down(heap, 0, n);
  }
}

static float largest_of(const float *x, Range range) {
  v128_t top[2] = {splat(-__builtin_inff()), splat(-__builtin_inff())};
  uint32_t i = range.begin;
  for (; i + 8 <= range.end; i += 8) {
    top[0] = wasm_f32x4_pmax(top[0], load(x + i));
    top[1] = wasm_f32x4_pmax(top[1], load(x + i + 4));
  }
  for (; i < range.end; i++) top[0] = wasm_f32x4_pmax(top[0], splat(x[i]));
  return max_lanes(wasm_f32x4_pmax(top[0], top[1]));
}

// The sum of exp(x - maximum) over the range; NaN if any value is, or infinity.
static float sum_of_exp(const float *x, Range range, float maximum) {
  if (maximum == -__builtin_inff()) {  // nothing but -inf, whose exponentials are 0, and NaN
    for (uint32_t i = range.begin; i < range.end; i++) {
      if (x[i] != x[i]) return x[i];
    }
    return 0;
  }
  v128_t total[2] = {splat(0), splat(0)};
  uint32_t i = range.begin;
  for (; i + 8 <= range.end; i += 8) {
    total[0] = add(total[0], exp4(sub(load(x + i), splat(maximum))));
    total[1] = add(total[1], exp4(sub(load(x + i + 4), splat(maximum))));
  }
  float sum = sum_lanes(add(total[0], total[1]));
  for (; i < range.end; i++) sum += exp1(x[i] - maximum);
  return sum;
}

void op_topk(const TopkOp *op, Step step, Thread th) {
  Range items = share(step.tokens * CHUNKS, th);
  float floor = -__builtin_inff();  // k values of this row, in earlier chunks, are at least as large
  for (uint32_t item = items.begin; item < items.end; item++) {
    const uint32_t row = item / CHUNKS, chunk = item % CHUNKS;
    const float *x = f32_at(op->logits) + row * op->n;
    Range range = share(op->n, (Thread){.tid = chunk, .n = CHUNKS});
    Candidate *out = partial(op->scratch, op->k, row, chunk);
    if (chunk == 0) floor = -__builtin_inff();
    largest(x, range, op->k, floor, out);
    if (out[op->k - 1].id != NO_ID && out[op->k - 1].value > floor) floor = out[op->k - 1].value;
    out[op->k].value = largest_of(x, range);
    out[op->k + 1].value = sum_of_exp(x, range, out[op->k].value);
  }
}

static void merge_row(const TopkMergeOp *op, uint32_t row) {
  const Candidate *at[CHUNKS], *end[CHUNKS];
  uint32_t *ids = u32_at(op->dst) + row * (2 * op->k + 2);
  float *values = (float *)ids + op->k;
  float maximum = -__builtin_inff();
  double sum = 0;
  int nan = 0;
  for (uint32_t c = 0; c < CHUNKS; c++) {
    at[c] = partial(op->scratch, op->k, row, c);
    end[c] = at[c] + op->k;
    if (end[c][0].value > maximum) maximum = end[c][0].value;
    if (end[c][1].value != end[c][1].value) nan = 1;
  }
  if (nan || maximum == -__builtin_inff()) {  // NaN or infinity somewhere, or nothing: no token is likeliest
    for (uint32_t i = 0; i < op->k; i++) ids[i] = NO_ID;
    for (uint32_t i = 0; i < op->k + 2; i++) values[i] = __builtin_nanf("");
    return;
  }
  for (uint32_t c = 0; c < CHUNKS; c++) {
    if (end[c][1].value > 0) sum += (double)end[c][1].value * (double)exp1(end[c][0].value - maximum);
  }
  for (uint32_t i = 0; i < op->k; i++) {
    uint32_t best = CHUNKS;
    for (uint32_t c = 0; c < CHUNKS; c++) {
      if (at[c] < end[c] && at[c]->id != NO_ID && (best == CHUNKS || better(*at[c], *at[best]))) best = c;
    }
    ids[i] = best < CHUNKS ? at[best]->id : NO_ID;
    values[i] = best < CHUNKS ? at[best]->value : -__builtin_inff();
    if (best < CHUNKS) at[best]++;
  }
  values[op->k] = maximum;
  values[op->k + 1] = maximum + (float)log1(sum);
}

void op_topk_merge(const TopkMergeOp *op, Step step, Thread th) {
  Range rows = share(step.tokens, th);
  for (uint32_t row = rows.begin; row < rows.end; row++) merge_row(op, row);
}
