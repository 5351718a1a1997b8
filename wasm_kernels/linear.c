// LINEAR and GATED: which thread multiplies by which rows of the weights.
#include "mathf.h"
#include "matmul.h"
#include "quantize.h"
#include "scratch.h"

#define AHEAD_BYTES (256u << 10)  // fits the second-level cache of any core, beside what is in use

// How `count` panels or blocks of rows are shared out, once for each TOKEN_BLOCK tokens. With one token memory is what
// takes time, and is read fastest in long stretches: only the last quarter goes in small pieces.
static Queue queue_of(uint32_t count, Step step, Thread th) {
  if (step.tokens > 1) return (Queue){.units = count * div_up(step.tokens, TOKEN_BLOCK), .grain = 1};
  const uint32_t fixed = th.n == 1 ? count : count - count / 4;
  return (Queue){.units = count, .fixed = fixed, .grain = div_up(count - fixed, 8 * th.n)};
}

// The stretch of panels or blocks that a thread has taken, and the tokens.
static Range taken_rows(const Queue *queue, uint32_t count, Step step, Range *tokens) {
  const uint32_t block = queue->range.begin / count, t = block * TOKEN_BLOCK;
  *tokens = (Range){t, min_u32(t + TOKEN_BLOCK, step.tokens)};
  return (Range){queue->range.begin - block * count, queue->range.end - block * count};
}

static Weight linear_weight(const LinearOp *op, uint32_t i) {
  const uint32_t *operands = &op->values0 + 5 * i;  // values, scales, dst, n_out, quant, for each weight
  return (Weight){operands[0], operands[1], op->n_in, operands[3], operands[4]};
}

// The weights' panels count as one long list, so that q, k and v are shared out together.
static uint32_t linear_panels(const LinearOp *op) {
  uint32_t panels = 0;
  for (uint32_t i = 0; i < op->count; i++) panels += div_up(linear_weight(op, i).n_out, PANEL);
  return panels;
}

void op_linear(const LinearOp *op, Step step, Thread th) {
  const Input input = {op->src, op->src_q};
  const uint32_t panels = linear_panels(op);
  Queue queue = queue_of(panels, step, th);
  while (take(&queue, th)) {
    Range tokens;
    const Range range = taken_rows(&queue, panels, step, &tokens);
    uint32_t first = 0;
    for (uint32_t i = 0; i < op->count; i++) {
      const Weight weight = linear_weight(op, i);
      const uint32_t count = div_up(weight.n_out, PANEL);
      const uint32_t begin = max_u32(range.begin, first), end = min_u32(range.end, first + count);
      if (begin < end) {
        const Range rows = {(begin - first) * PANEL, min_u32((end - first) * PANEL, weight.n_out)};
        float *dst = f32_at((&op->dst0)[5 * i]) + tokens.begin * weight.n_out + rows.begin;
        matmul(&weight, rows, &input, tokens, dst, weight.n_out);
      }
      first += count;
    }
  }
}

static Weight gate_of(const GatedOp *op) {
  return (Weight){op->gate_values, op->gate_scales, op->n_in, op->n_out, op->quant};
}

// A unit is one quantization block of the output, so that the thread that computes it can quantize it.
static void gated_block(const GatedOp *op, uint32_t block, Range tokens, float *gate, float *up) {
  const Input input = {op->src, op->src_q};
  const Weight g = gate_of(op), u = {op->up_values, op->up_scales, op->n_in, op->n_out, op->quant};
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
  const uint32_t blocks = div_up(op->n_out, QBLOCK);
  Queue queue = queue_of(blocks, step, th);
  while (take(&queue, th)) {
    Range tokens;
    const Range range = taken_rows(&queue, blocks, step, &tokens);
    for (uint32_t b = range.begin; b < range.end; b++) gated_block(op, b, tokens, gate, up);
  }
}

static Ahead from_row(const Weight *w, uint32_t row) {
  const uint32_t rows = div_up(w->n_out, PANEL) * PANEL;
  const uint8_t *at = bytes_at(w->values + values_bytes(w, row));
  return (Ahead){at, at + min_u32(values_bytes(w, rows - row), AHEAD_BYTES)};
}

static const Step one_token = {.tokens = 1};

Ahead linear_ahead(const LinearOp *op, Thread th) {
  uint32_t panel = share(queue_of(linear_panels(op), one_token, th).fixed, th).begin;
  for (uint32_t i = 0; i < op->count; i++) {
    const Weight weight = linear_weight(op, i);
    const uint32_t count = div_up(weight.n_out, PANEL);
    if (panel < count) return from_row(&weight, panel * PANEL);
    panel -= count;
  }
  return (Ahead){0};
}

Ahead gated_ahead(const GatedOp *op, Thread th) {
  const Weight gate = gate_of(op);
  const uint32_t blocks = div_up(op->n_out, QBLOCK);
  return from_row(&gate, share(queue_of(blocks, one_token, th).fixed, th).begin * QBLOCK);
}
