#include "mathf.h"
#include "matmul.h"
#include "quantize.h"

// The weights' rows count as one long list of units, so that threads get equal shares of q, k and v together.
void op_linear(const LinearOp *op, Step step, Thread th) {
  const uint32_t *operands = &op->values0;  // values, scales, dst, n_out, quant, for each weight
  const Input input = {op->src, op->src_q};
  uint32_t units = 0;
  for (uint32_t i = 0; i < op->count; i++) units += div_up(operands[5 * i + 3], PANEL);
  Range mine = share(units, th);
  uint32_t first = 0;
  for (uint32_t i = 0; i < op->count; i++, operands += 5) {
    const Weight weight = {operands[0], operands[1], op->n_in, operands[3], operands[4]};
    uint32_t count = div_up(weight.n_out, PANEL);
    uint32_t begin = max_u32(mine.begin, first), end = min_u32(mine.end, first + count);
    if (begin < end) {
      Range rows = {(begin - first) * PANEL, min_u32((end - first) * PANEL, weight.n_out)};
      matmul(&weight, rows, &input, (Range){0, step.tokens}, f32_at(operands[2]) + rows.begin, weight.n_out);
    }
    first += count;
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
  Range blocks = share(div_up(op->n_out, QBLOCK), th);
  for (uint32_t b = blocks.begin; b < blocks.end; b++) {
    for (uint32_t t = 0; t < step.tokens; t += TOKEN_BLOCK) {
      gated_block(op, b, (Range){t, min_u32(t + TOKEN_BLOCK, step.tokens)}, gate, up);
    }
  }
}
