// TOPK: the largest logits of each row. The row is cut into CHUNKS, whatever the number of threads, so that the sum of
// exponentials does not depend on it; each chunk keeps its k largest in a heap, TOPK_MERGE joins the chunks.
#include "mathf.h"
#include "ops.h"

#define CHUNKS MAX_THREADS
#define NO_ID 0xffffffffu

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

// The k largest of x[range] into heap, in falling order.
static void largest(const float *x, Range range, uint32_t k, Candidate *heap) {
  for (uint32_t i = 0; i < k; i++) heap[i] = (Candidate){NO_ID, -__builtin_inff()};
  for (uint32_t i = range.begin; i < range.end; i += 4) {
    uint32_t n = min_u32(4, range.end - i);
    // equal values come with a higher id and lose, but for -inf against the empty places
    if (n == 4 && heap[0].id != NO_ID && !wasm_v128_any_true(wasm_f32x4_gt(load(x + i), splat(heap[0].value)))) continue;
    for (uint32_t j = i; j < i + n; j++) {
      Candidate c = {j, x[j]};
      if (better(c, heap[0])) {
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

// maximum of x[range], and the sum of exp(x - maximum).
static void log_sum_parts(const float *x, Range range, float *maximum, float *sum) {
  v128_t top = splat(-__builtin_inff());
  for (uint32_t i = range.begin; i < range.end; i++) {
    if (i + 4 <= range.end) {
      top = wasm_f32x4_pmax(top, load(x + i));
      i += 3;
    } else {
      top = wasm_f32x4_pmax(top, splat(x[i]));
    }
  }
  *maximum = max_lanes(top);
  v128_t total = splat(0);
  uint32_t i = range.begin;
  for (; i + 4 <= range.end; i += 4) total = add(total, exp4(sub(load(x + i), splat(*maximum))));
  *sum = sum_lanes(total);
  for (; i < range.end; i++) *sum += exp1(x[i] - *maximum);
}

void op_topk(const TopkOp *op, Step step, Thread th) {
  Range items = share(step.tokens * CHUNKS, th);
  for (uint32_t item = items.begin; item < items.end; item++) {
    const uint32_t row = item / CHUNKS, chunk = item % CHUNKS;
    const float *x = f32_at(op->logits) + row * op->n;
    Range range = share(op->n, (Thread){chunk, CHUNKS});
    Candidate *out = partial(op->scratch, op->k, row, chunk);
    largest(x, range, op->k, out);
    log_sum_parts(x, range, (float *)(out + op->k), (float *)(out + op->k + 1));
  }
}

static void merge_row(const TopkMergeOp *op, uint32_t row) {
  const Candidate *at[CHUNKS], *end[CHUNKS];
  uint32_t *ids = u32_at(op->dst) + row * (2 * op->k + 2);
  float *values = (float *)ids + op->k;
  float maximum = -__builtin_inff();
  for (uint32_t c = 0; c < CHUNKS; c++) {
    at[c] = partial(op->scratch, op->k, row, c);
    end[c] = at[c] + op->k;
    maximum = wasm_f32x4_extract_lane(wasm_f32x4_pmax(splat(maximum), splat(*(const float *)end[c])), 0);
  }
  double sum = 0;
  for (uint32_t c = 0; c < CHUNKS; c++) {
    const float *parts = (const float *)end[c];  // a candidate's 8 bytes each
    if (parts[2] > 0) sum += (double)parts[2] * (double)exp1(parts[0] - maximum);
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
