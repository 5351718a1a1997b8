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

// Nibbles of 4 rows' chunk, a column's in each 16-bit lane: k = 0 columns 4c + 0 and 2 (of each row), 1 columns 4c + 1
// and 3, 2 and 3 likewise 16 columns on.
INLINE v128_t q4_part(v128_t v, int k, v128_t nibble) {
  v128_t low = k == 0 ? v : wasm_u16x8_shr(v, k == 1 ? 8 : k == 2 ? 4 : 12);
  return k == 3 ? low : wasm_v128_and(low, nibble);
}

INLINE void q4_tile(const Weight *w, uint32_t row, const uint8_t *x, uint32_t stride, int groups, int tokens,
                    v128_t *acc) {
  const v128_t nibble = constant_i32(0x000f000f);
  const uint32_t nb = w->n_in / QBLOCK;
  const uint8_t *values = bytes_at(w->values) + panel(row) * (w->n_in / 2) + lane(row) * 4;
  const uint16_t *scales = u16_at(w->scales) + panel(row) * nb + lane(row);
  for (uint32_t b = 0; b < nb; b++) {
    v128_t sum[TILE_SUMS], v[TILE_SUMS];
    UNROLL for (int t = 0; t < tokens; t++) {
      v128_t offset = splat_at(&x_block(x, stride, t, b)->offset);
      UNROLL for (int g = 0; g < groups; g++)
        sum[g * tokens + t] = offset;
    }
    IN_TURN for (int c = 0; c < 16; c += 4) {
      UNROLL for (int g = 0; g < groups; g++)
        v[g] = load(values + b * PANEL * 16 + PANEL * c + GROUP * 4 * g);
      UNROLL for (int k = 0; k < 4; k++) {
        UNROLL for (int t = 0; t < tokens; t++) {
          v128_t q = splat_at(x_block(x, stride, t, b)->q + c + k % 2 * 2 + k / 2 * 16);
          UNROLL for (int g = 0; g < groups; g++)
            sum[g * tokens + t] = dot(q, q4_part(v[g], k, nibble), sum[g * tokens + t]);
        }
      }
    }
    UNROLL for (int g = 0; g < groups; g++) {
      v128_t w_scale = load_f16(scales + b * PANEL + GROUP * g);
      UNROLL for (int t = 0; t < tokens; t++) {
        add_block(sum[g * tokens + t], w_scale, x_block(x, stride, t, b), &acc[g * tokens + t]);
      }
    }
  }
}

INLINE void q8_tile(const Weight *w, uint32_t row, const uint8_t *x, uint32_t stride, int groups, int tokens,
                    v128_t *acc) {
  const v128_t byte = constant_i32(0x00ff00ff);
  const uint32_t nb = w->n_in / QBLOCK;
  const uint8_t *values = bytes_at(w->values) + panel(row) * w->n_in + lane(row) * 4;
  const float *scales = f32_at(w->scales) + panel(row) * nb + lane(row);
  for (uint32_t b = 0; b < nb; b++) {
    v128_t sum[TILE_SUMS], v[TILE_SUMS];
    UNROLL for (int t = 0; t < tokens; t++) {
      v128_t offset = wasm_i32x4_shl(splat_at(&x_block(x, stride, t, b)->offset), 4);
      UNROLL for (int g = 0; g < groups; g++)
        sum[g * tokens + t] = offset;
    }
    IN_TURN for (int c = 0; c < 32; c += 4) {
      UNROLL for (int g = 0; g < groups; g++)
        v[g] = load(values + b * PANEL * 32 + PANEL * c + GROUP * 4 * g);
      UNROLL for (int k = 0; k < 2; k++) {
        UNROLL for (int t = 0; t < tokens; t++) {
          v128_t q = splat_at(x_block(x, stride, t, b)->q + c + 2 * k);
          UNROLL for (int g = 0; g < groups; g++) {
            v128_t part = k == 0 ? wasm_v128_and(v[g], byte) : wasm_u16x8_shr(v[g], 8);
            sum[g * tokens + t] = dot(q, part, sum[g * tokens + t]);
          }
        }
      }
    }
    UNROLL for (int g = 0; g < groups; g++) {
      v128_t w_scale = load(scales + b * PANEL + GROUP * g);
      UNROLL for (int t = 0; t < tokens; t++) {
        add_block(sum[g * tokens + t], w_scale, x_block(x, stride, t, b), &acc[g * tokens + t]);
      }
    }
  }
}
