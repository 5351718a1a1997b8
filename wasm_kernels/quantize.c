#include "quantize.h"

#include "dot.h"

// To the nearest integer, ties to even, for |x| < 2^22: the sum's low mantissa bits are the integer.
INLINE v128_t round4(v128_t x) { return wasm_i32x4_sub(add(x, splat(12582912.0f)), wasm_i32x4_splat(0x4b400000)); }

#ifdef __wasm_relaxed_simd__
// Magnitudes and signs of 32 columns; returns the sum of the negative ones' magnitudes, which dot.h's DOT_PAIRS wants.
INLINE int32_t split_signs(XSigns *signs, const v128_t *v) {
  const v128_t zero = wasm_i32x4_splat(0);
  v128_t sum = zero;
  UNROLL for (int i = 0; i < 8; i += 4) {
    v128_t low = wasm_i16x8_narrow_i32x4(v[i], v[i + 1]), high = wasm_i16x8_narrow_i32x4(v[i + 2], v[i + 3]);
    v128_t low_negative = wasm_i16x8_lt(low, zero), high_negative = wasm_i16x8_lt(high, zero);
    store(signs->magnitude + 4 * i, wasm_i8x16_abs(wasm_i8x16_narrow_i16x8(low, high)));
    store(signs->negative + 4 * i, wasm_i8x16_narrow_i16x8(low_negative, high_negative));
    sum = wasm_i32x4_add(sum, wasm_i32x4_dot_i16x8(low, low_negative));
    sum = wasm_i32x4_add(sum, wasm_i32x4_dot_i16x8(high, high_negative));
  }
  return sum_lanes_i32(sum);
}
#endif

INLINE void quantize_block(XBlock *block, XSigns *signs, const float *x, int kind) {
  v128_t v[8], amax = splat(0.0f);
  UNROLL for (int i = 0; i < 8; i++) {
    v[i] = load(x + 4 * i);
    // Magnitudes order as the integers of the same bits, NaN above all: one NaN makes the block's scale NaN.
    amax = wasm_i32x4_max(amax, wasm_f32x4_abs(v[i]));
  }
  amax = wasm_i32x4_max(amax, wasm_i32x4_shuffle(amax, amax, 2, 3, 0, 1));
  amax = wasm_i32x4_max(amax, wasm_i32x4_shuffle(amax, amax, 1, 0, 3, 2));
  float top = wasm_f32x4_extract_lane(amax, 0);
  v128_t inverse = splat(top > 1e-30f ? 127.0f / top : 0.0f);  // 127 / a smaller one may be infinite
  v128_t sum = wasm_i32x4_splat(0);
  UNROLL for (int i = 0; i < 8; i++) {
    v[i] = round4(mul(v[i], inverse));
    sum = wasm_i32x4_add(sum, v[i]);
#ifndef __wasm_relaxed_simd__
    v[i] = wasm_i32x4_shuffle(v[i], v[i], 0, 2, 1, 3);
#endif
  }
  block->scale = top / 127.0f;
  const int32_t total = sum_lanes_i32(sum);
  block->offset = -8 * total;
#ifdef __wasm_relaxed_simd__
  UNROLL for (int i = 0; i < 8; i += 4) {
    v128_t low = wasm_i16x8_narrow_i32x4(v[i], v[i + 1]), high = wasm_i16x8_narrow_i32x4(v[i + 2], v[i + 3]);
    store(block->q + 4 * i, wasm_i8x16_narrow_i16x8(low, high));
  }
  block->q8_offset = kind == DOT_UNSIGNED ? -128 * total : kind == DOT_PAIRS ? split_signs(signs, v) : 0;
#else
  UNROLL for (int i = 0; i < 8; i += 2)
    store(block->q + 4 * i, wasm_i16x8_narrow_i32x4(v[i], v[i + 1]));
  (void)kind, (void)signs;
#endif
}

void quantize(uint8_t *row, uint32_t row_columns, uint32_t first, const float *x, uint32_t n) {
  const int kind = dot_kind();
  XBlock *blocks = (XBlock *)row;
  XSigns *signs = (XSigns *)(blocks + row_columns / QBLOCK);
  for (uint32_t i = 0; i < n; i += QBLOCK) {
    const uint32_t b = (first + i) / QBLOCK;
    quantize_block(blocks + b, signs + b, x + i, kind);
  }
}
