#include "mathf.h"
#include "matmul.h"
#include "quantize.h"

// Panels or blocks of rows that are taken together. With one token each thread takes a single stretch, as memory is
// read fastest that way; with more tokens one panel is work enough.
static uint32_t grain_of(uint32_t count, Step step, Thread th) { return step.tokens > 1 ? 1 : div_up(count, th.n); }

// The weights' panels count as one long list, so that q, k and v are shared out together.
void op_linear(const LinearOp *op, Step step, Thread th) {
  const uint32_t *operands = &op->values0;  // values, scales, dst, n_out, quant, for each weight
  const Input input = {op->src, op->src_q};
  uint32_t panels = 0;
  for (uint32_t i = 0; i < op->count; i++) panels += div_up(operands[5 * i + 3], PANEL);
  const uint32_t grain = grain_of(panels, step, th), grains = div_up(panels, grain);
  Queue queue = {.units = grains * div_up(step.tokens, TOKEN_BLOCK)};
  while (take(&queue, th)) {
    const uint32_t t = queue.unit / grains * TOKEN_BLOCK, from = queue.unit % grains * grain;
    const Range tokens = {t, min_u32(t + TOKEN_BLOCK, step.tokens)};
    uint32_t first = 0;
    for (uint32_t i = 0; i < op->count; i++) {
      const Weight weight = {operands[5 * i], operands[5 * i + 1], op->n_in, operands[5 * i + 3], operands[5 * i + 4]};
      const uint32_t count = div_up(weight.n_out, PANEL);
      const uint32_t begin = max_u32(from, first), end = min_u32(from + grain, first + count);
      if (begin < end) {
        const Range rows = {(begin - first) * PANEL, min_u32((end - first) * PANEL, weight.n_out)};
        float *dst = f32_at(operands[5 * i + 2]) + t * weight.n_out + rows.begin;
        matmul(&weight, rows, &input, tokens, dst, weight.n_out);
      }
      first += count;
    }
  }
}

// A unit is one quantization block of the output, so that the thread that computes it can quantize it.
static void gated_block(const GatedOp *op, uint32_t block, Range tokens, float *gate, float *up) {
  const Input input = {op->src, op->src_q};
  const Weight g = {op->gate_values, op->gate_scales, op->n_in, op->n_out, op->quant};
  const Weight u = {op->up_values, op->up_scales, op->n_in, op->n_out, op->quant};
  Range rows = {block * QBLOCK, min_u32((block + 1) * QBLOCK, op->n_out)};
  matmul(&g, rows, &input, tokens, gate, QBLOCK);
  matmul(&u, rows, &input, tokens, up, QBLOCK);
  for (uint32_t t = tokens.begin; t < tokens.end; t++, gate += QBLOCK, up += QBLOCK) {
    for (uint32_t i = 0; i < QBLOCK; i += 4) store(gate + i, mul(activate4(load(gate + i), op->act), load(up + i)));
    if (op->dst) {
      float *dst = f32_at(op->dst) + t * op->n_out + rows.begin;
      for (uint32_t i = 0; i < rows.end - rows.begin; i += 4)
        store_first(dst + i, load(gate + i), rows.end - rows.begin - i);
    }
    if (op->dst_q) quantize(bytes_at(op->dst_q + t * quantized_bytes(op->n_out)), op->n_out, rows.begin, gate, QBLOCK);
  }
}

void op_gated(const GatedOp *op, Step step, Thread th) {
  float *gate = thread_scratch(th), *up = gate + TOKEN_BLOCK * QBLOCK;
  const uint32_t blocks = div_up(op->n_out, QBLOCK), grain = grain_of(blocks, step, th), grains = div_up(blocks, grain);
  Queue queue = {.units = grains * div_up(step.tokens, TOKEN_BLOCK)};
  while (take(&queue, th)) {
    const uint32_t t = queue.unit / grains * TOKEN_BLOCK, from = queue.unit % grains * grain;
    for (uint32_t b = from; b < min_u32(from + grain, blocks); b++) {
      gated_block(op, b, (Range){t, min_u32(t + TOKEN_BLOCK, step.tokens)}, gate, up);
    }
  }
}
