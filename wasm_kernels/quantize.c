#include "quantize.h"

#include "dot.h"

// To the nearest integer, ties to even, for |x| < 2^22: the sum's low mantissa bits are the integer.
INLINE v128_t round4(v128_t x) { return wasm_i32x4_sub(add(x, splat(12582912.0f)), wasm_i32x4_splat(0x4b400000)); }

INLINE void quantize_block(XBlock *block, const float *x, int q8_bias) {
  v128_t v[8], amax = splat(0.0f);
  UNROLL for (int i = 0; i < 8; i++) {
    v[i] = load(x + 4 * i);
    amax = wasm_f32x4_pmax(amax, wasm_f32x4_abs(v[i]));
  }
  float top = max_lanes(amax);
  v128_t inverse = splat(top > 1e-30f ? 127.0f / top : 0.0f);  // 127 / a smaller one may be infinite
  v128_t sum = wasm_i32x4_splat(0);
  UNROLL for (int i = 0; i < 8; i++) {
    v[i] = round4(mul(v[i], inverse));
    sum = wasm_i32x4_add(sum, v[i]);
#ifndef __wasm_relaxed_simd__
    v[i] = wasm_i32x4_shuffle(v[i], v[i], 0, 2, 1, 3);
#endif
  }
#ifdef __wasm_relaxed_simd__
  UNROLL for (int i = 0; i < 8; i += 4) {
    v128_t low = wasm_i16x8_narrow_i32x4(v[i], v[i + 1]), high = wasm_i16x8_narrow_i32x4(v[i + 2], v[i + 3]);
    store(block->q + 4 * i, wasm_i8x16_narrow_i16x8(low, high));
  }
#else
  UNROLL for (int i = 0; i < 8; i += 2)
    store(block->q + 4 * i, wasm_i16x8_narrow_i32x4(v[i], v[i + 1]));
#endif
  block->scale = top / 127.0f;
  const int32_t total = sum_lanes_i32(sum);
  block->offset = -8 * total;
#ifdef __wasm_relaxed_simd__
  block->q8_offset = -q8_bias * total;
#else
  (void)q8_bias;
#endif
}

void quantize(XBlock *blocks, const float *x, uint32_t n) {
  const int q8_bias = dot_kind() == DOT_SIGNED ? 0 : 128;
  for (uint32_t b = 0; b < n / QBLOCK; b++) quantize_block(blocks + b, x + b * QBLOCK, q8_bias);
}
