// HEADS: what becomes of q, k and v between their projections and attention; and the ROPE_TABLE that it reads.
#include "cache.h"
#include "mathf.h"
#include "norm.h"

#define MAX_HEAD_DIM 512u

void op_rope_table(const RopeTableOp *op, Step step, Thread th) {
  const float *inv_freq = f32_at(op->inv_freq);
  Range tokens = share(step.tokens, th);
  for (uint32_t t = tokens.begin; t < tokens.end; t++) {
    float *cosine = f32_at(op->dst) + t * 2 * op->pairs, *sine = cosine + op->pairs;
    for (uint32_t i = 0; i < op->pairs; i++) {
      sincos1((float)(step.pos + t) * inv_freq[i], sine + i, cosine + i);  // the product in f32, as models are trained
    }
  }
}

static void norm_head(const HeadsOp *op, float *x) {
  const v128_t factor = splat(inverse_rms(x, op->head_dim, op->eps));
  for (uint32_t i = 0; i < op->head_dim; i += 4) {
    v128_t y = mul(load(x + i), factor);
    if (op->weight) y = mul(y, add(load_bf16(u16_at(op->weight) + i), splat(op->offset)));
    store(x + i, y);
  }
}

// Turns pairs (i, i + head_dim / 2) by the angles of one row of the rope table.
static void rotate(float *x, const float *rope, uint32_t head_dim) {
  const uint32_t half = head_dim / 2;
  for (uint32_t i = 0; i < half; i += 4) {
    uint32_t n = half - i;
    v128_t c = load_first(rope + i, n), s = load_first(rope + half + i, n);
    v128_t a = load_first(x + i, n), b = load_first(x + half + i, n);
    store_first(x + i, sub(mul(a, c), mul(b, s)), n);
    store_first(x + half + i, add(mul(b, c), mul(a, s)), n);
  }
}

static void write_key(const HeadsOp *op, uint32_t page, uint32_t head, uint32_t slot, const float *x) {
  const uint32_t base = key_index(head, slot, op->head_dim, 0);
  for (uint32_t d = 0; d < op->head_dim; d += 4) {
    if (op->kv == KV_F16) {
      uint16_t half[4], *to = u16_at(page) + base + KV_LANES * d;
      store_f16(half, load(x + d));
      for (uint32_t k = 0; k < 4; k++) to[KV_LANES * k] = half[k];
    } else {
      float *to = f32_at(page) + base + KV_LANES * d;
      for (uint32_t k = 0; k < 4; k++) to[KV_LANES * k] = x[d + k];
    }
  }
}

static void write_value(const HeadsOp *op, uint32_t page, uint32_t head, uint32_t slot, const float *x) {
  const uint32_t values = values_of(page, op->heads, op->head_dim, op->kv);
  for (uint32_t d = 0; d < op->head_dim; d += 4) {
    uint32_t i = value_index(head, slot, op->head_dim, d);
    if (op->kv == KV_F16) {
      store_f16(u16_at(values) + i, load(x + d));
    } else {
      store(f32_at(values) + i, load(x + d));
    }
  }
}

void op_heads(const HeadsOp *op, Step step, Thread th) {
  if (op->head_dim > MAX_HEAD_DIM) __builtin_trap();
  Range items = share(step.tokens * op->heads, th);
  for (uint32_t item = items.begin; item < items.end; item++) {
    const uint32_t t = item / op->heads, head = item % op->heads, position = step.pos + t;
    float x[MAX_HEAD_DIM];
    __builtin_memcpy(x, f32_at(op->src) + item * op->head_dim, op->head_dim * 4);
    if (op->norm) norm_head(op, x);
    if (op->rope) rotate(x, f32_at(op->rope) + (step.rope_row + t) * op->head_dim, op->head_dim);
    if (op->scale != 1.0f) {
      for (uint32_t i = 0; i < op->head_dim; i += 4) store(x + i, mul(load(x + i), splat(op->scale)));
    }
    if (op->bind == BIND_BUFFER) {
      __builtin_memcpy(f32_at(op->dst) + item * op->head_dim, x, op->head_dim * 4);
      continue;
    }
    const uint32_t page = page_of((const Cache *)bytes_at(op->cache), position);
    if (op->bind == BIND_KEY) {
      write_key(op, page, head, position % PAGE, x);
    } else {
      write_value(op, page, head, position % PAGE, x);
    }
  }
}
