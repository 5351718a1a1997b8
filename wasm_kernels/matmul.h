// The matrix product that LINEAR and GATED are made of.
#pragma once
#include "ops.h"

#define GROUP 4u         // rows interleaved in a repacked weight: one a lane
#define ROW_UNIT 8u      // rows that threads share out as one
#define TOKEN_BLOCK 64u  // tokens that are multiplied by one pass over the weight

// A repacked weight: see repack.c for the layout.
typedef struct {
  uint32_t values, scales;  // addresses
  uint32_t n_in, n_out;
  uint32_t quant;
} Weight;

// The input rows: f32 [T, n_in] for bf16 weights, the quantized copy for Q8 and Q4.
typedef struct {
  uint32_t f32, quantized;  // addresses
} Input;

// dst[(t - tokens.begin) * stride + (r - rows.begin)] = row r of weight times token t, for all r in rows, t in tokens.
// rows.begin is a multiple of ROW_UNIT, rows.end too or n_out. Each output is summed in one order, whatever the ranges.
void matmul(const Weight *weight, Range rows, const Input *input, Range tokens, float *dst, uint32_t stride);
