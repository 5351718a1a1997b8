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
  int32_t q8_offset;  // what the bias of a Q8 weight contributes: -128 * sum(q), or 0 where it has none
#endif
} XBlock;

// Bytes of one row's copy, as quantized_bytes in records.py: room for either build's blocks.
static inline uint32_t quantized_bytes(uint32_t n) { return (n * 2 + (n + 31) / 32 * 8 + 63) / 64 * 64; }

// Quantize n columns of x (n a multiple of 32) into blocks: scale = max|x| / 127, q = x * (127 / max|x|) to nearest.
void quantize(XBlock *blocks, const float *x, uint32_t n);
