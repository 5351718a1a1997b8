// The quantized copy of an activation row: blocks of 32 columns, laid out for the dot products of this build.
#pragma once
#include "vec.h"

#define QBLOCK 32u

typedef struct {
#ifdef __wasm_relaxed_simd__
  int8_t q[32];
#else
  int16_t q[32];  // of columns 4i to 4i + 3: 0, 2, 1, 3, as a 16-bit multiply meets bytes 0 and 2, then 1 and 3
#endif
  float scale;
  int32_t offset;  // -8 * sum(q): what a Q4 weight's bias of 8 contributes
#ifdef __wasm_relaxed_simd__
  int32_t q8_offset;  // what is missing from a Q8 weight's dot product: see dot.h
#endif
} XBlock;

// q once more, in two parts, for Q8 weights where dot_kind is DOT_PAIRS; behind the row's last XBlock.
typedef struct {
  int8_t magnitude[32];
  int8_t negative[32];  // all bits, or none
} XSigns;

// Bytes of one row's copy, as quantized_bytes in records.py: room for what any build and machine wants.
static inline uint32_t quantized_bytes(uint32_t n) { return (n + 31) / 32 * 108; }

// Quantize n columns of x into the copy of a row of `row_columns` columns, from column `first` on (all multiples of
// 32): scale = max|x| / 127, q = x * (127 / max|x|) to nearest.
void quantize(uint8_t *row, uint32_t row_columns, uint32_t first, const float *x, uint32_t n);
