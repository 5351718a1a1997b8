// The matrix product that LINEAR and GATED are made of.
#pragma once
#include "ops.h"

#define GROUP 4u         // rows of one vector: one a lane
#define PANEL 16u        // rows that are interleaved in a repacked weight, and that threads share out as one
#define TOKEN_BLOCK 64u  // tokens that are multiplied by one pass over the weight

// A repacked weight: see repack.c for the layout.
typedef struct {
  uint32_t values, scales;  // addresses
  uint32_t n_in, n_out;
  uint32_t quant;
} Weight;

// Of a row of a repacked weight: the first row of its panel, and its place there.
INLINE uint32_t panel(uint32_t row) { return row / PANEL * PANEL; }
INLINE uint32_t lane(uint32_t row) { return row % PANEL; }

// Bytes of the values of so many rows.
INLINE uint32_t values_bytes(const Weight *w, uint32_t rows) {
  return rows * (w->quant == QUANT_Q4 ? w->n_in / 2 : w->quant == QUANT_Q8 ? w->n_in : w->n_in * 2);
}

// The input rows: f32 [T, n_in] for bf16 weights, the quantized copy for Q8 and Q4.
typedef struct {
  uint32_t f32, quantized;  // addresses
} Input;

// dst[(t - tokens.begin) * stride + (r - rows.begin)] = row r of weight times token t, for all r in rows, t in tokens.
// rows.begin is a multiple of PANEL, rows.end too or n_out. Each output is summed in one order, whatever the ranges.
void matmul(const Weight *weight, Range rows, const Input *input, Range tokens, float *dst, uint32_t stride);
