#include "norm.h"

#include "ops.h"
#include "quantize.h"
#include "scratch.h"

// dst = (residual + src / rms * (weight + offset)) * scale for one row; see NORM in records.h.
static void norm_row(const NormOp *op, const float *src, const float *residual, float *dst) {
  const float factor = op->norm ? inverse_rms(src, op->n, op->eps) : 1.0f;
  const uint16_t *weight = u16_at(op->weight);
  for (uint32_t i = 0; i < op->n; i += 4) {
    uint32_t left = op->n - i;
    v128_t y = load_first(src + i, left);
    if (op->norm) y = mul(y, splat(factor));
    if (op->norm && weight) y = mul(y, add(load_bf16_first(weight + i, left), splat(op->offset)));
    if (residual) y = add(load_first(residual + i, left), y);
    store_first(dst + i, mul(y, splat(op->scale)), left);
  }
}

void op_norm(const NormOp *op, Step step, Thread th) {
  const uint32_t cols = op->rows * op->n;
  if (!op->dst && cols * 4 > SCRATCH_BYTES) __builtin_trap();
  Range tokens = share(step.tokens, th);
  for (uint32_t t = tokens.begin; t < tokens.end; t++) {
    const float *src = f32_at(op->src) + t * cols;
    const float *residual = op->residual ? f32_at(op->residual) + t * cols : 0;
    float *dst = op->dst ? f32_at(op->dst) + t * cols : thread_scratch(th);
    for (uint32_t r = 0; r < op->rows; r++) {
      norm_row(op, src + r * op->n, residual ? residual + r * op->n : 0, dst + r * op->n);
    }
    if (op->dst_q) quantize(bytes_at(op->dst_q + t * quantized_bytes(cols)), cols, 0, dst, cols);
  }
}
