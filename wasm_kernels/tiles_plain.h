// Tiles of quantized products with 16-bit dot products (dot.h): 4 * groups rows by `tokens` tokens, all columns.
// A weight's 16-bit lane holds two columns' bytes (or four nibbles); masking and shifting whole lanes takes them apart
// without widening, and x lies in the order they come out.
#pragma once
#include "dot.h"
#include "matmul.h"
#include "quantize.h"

INLINE const XBlock *x_block(const uint8_t *x, uint32_t stride, int token, uint32_t b) {
  return (const XBlock *)(x + (uint32_t)token * stride) + b;
}

INLINE void add_block(v128_t sum, v128_t w_scale, const XBlock *x, v128_t *acc) {
  *acc = madd(wasm_f32x4_convert_i32x4(sum), mul(w_scale, splat_at(&x->scale)), *acc);
}

INLINE void q4_tile(const Weight *w, uint32_t row, const uint8_t *x, uint32_t stride, int groups, int tokens,
                    v128_t *acc) {
  const v128_t nibble = constant_i32(0x000f000f);
  const uint32_t nb = w->n_in / QBLOCK;
  const uint8_t *values = bytes_at(w->values) + row / GROUP * nb * 64;
  const uint16_t *scales = u16_at(w->scales) + row / GROUP * nb * 4;
  for (uint32_t b = 0; b < nb; b++) {
    UNROLL for (int g = 0; g < groups; g++) {
      v128_t sum[TILE_SUMS];
      UNROLL for (int t = 0; t < tokens; t++)
        sum[t] = splat_at(&x_block(x, stride, t, b)->offset);
      IN_TURN for (int c = 0; c < 4; c++) {
        v128_t v = load(values + ((uint32_t)g * nb + b) * 64 + 16 * c);
        v128_t low02 = wasm_v128_and(v, nibble), high02 = wasm_v128_and(wasm_u16x8_shr(v, 4), nibble);
        v128_t low13 = wasm_v128_and(wasm_u16x8_shr(v, 8), nibble), high13 = wasm_u16x8_shr(v, 12);
        UNROLL for (int t = 0; t < tokens; t++) {
          const int16_t *q = x_block(x, stride, t, b)->q + 4 * c;
          sum[t] = dot(splat_at(q), low02, sum[t]);
          sum[t] = dot(splat_at(q + 2), low13, sum[t]);
          sum[t] = dot(splat_at(q + 16), high02, sum[t]);
          sum[t] = dot(splat_at(q + 18), high13, sum[t]);
        }
      }
      v128_t w_scale = load_f16(scales + ((uint32_t)g * nb + b) * 4);
      UNROLL for (int t = 0; t < tokens; t++) {
        add_block(sum[t], w_scale, x_block(x, stride, t, b), &acc[g * tokens + t]);
      }
    }
  }
}

INLINE void q8_tile(const Weight *w, uint32_t row, const uint8_t *x, uint32_t stride, int groups, int tokens,
                    v128_t *acc) {
  const v128_t byte = constant_i32(0x00ff00ff);
  const uint32_t nb = w->n_in / QBLOCK;
  const uint8_t *values = bytes_at(w->values) + row / GROUP * nb * 128;
  const float *scales = f32_at(w->scales) + row / GROUP * nb * 4;
  for (uint32_t b = 0; b < nb; b++) {
    UNROLL for (int g = 0; g < groups; g++) {
      v128_t sum[TILE_SUMS];
      UNROLL for (int t = 0; t < tokens; t++) {
        sum[t] = wasm_i32x4_shl(splat_at(&x_block(x, stride, t, b)->offset), 4);
      }
      IN_TURN for (int c = 0; c < 8; c++) {
        v128_t v = load(values + ((uint32_t)g * nb + b) * 128 + 16 * c);
        v128_t v02 = wasm_v128_and(v, byte), v13 = wasm_u16x8_shr(v, 8);
        UNROLL for (int t = 0; t < tokens; t++) {
          const int16_t *q = x_block(x, stride, t, b)->q + 4 * c;
          sum[t] = dot(splat_at(q + 2), v13, dot(splat_at(q), v02, sum[t]));
        }
      }
      v128_t w_scale = load(scales + ((uint32_t)g * nb + b) * 4);
      UNROLL for (int t = 0; t < tokens; t++) {
        add_block(sum[t], w_scale, x_block(x, stride, t, b), &acc[g * tokens + t]);
      }
    }
  }
}
