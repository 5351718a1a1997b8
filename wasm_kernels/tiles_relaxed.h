// Tiles of quantized products with the relaxed dot product (dot.h): 4 * groups rows by `tokens` tokens, all columns.
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
  const v128_t nibble = constant_i32(0x0f0f0f0f);
  const uint32_t nb = w->n_in / QBLOCK;
  const uint8_t *values = bytes_at(w->values) + row / GROUP * nb * 64;
  const uint16_t *scales = u16_at(w->scales) + row / GROUP * nb * 4;
  for (uint32_t b = 0; b < nb; b++) {
    v128_t sum[groups * tokens], low[groups], high[groups];
    UNROLL for (int t = 0; t < tokens; t++) {
      v128_t offset = splat_at(&x_block(x, stride, t, b)->offset);
      UNROLL for (int g = 0; g < groups; g++)
        sum[g * tokens + t] = offset;
    }
    UNROLL for (int c = 0; c < 4; c++) {
      UNROLL for (int g = 0; g < groups; g++) {
        v128_t v = load(values + ((uint32_t)g * nb + b) * 64 + 16 * c);
        low[g] = wasm_v128_and(v, nibble);
        high[g] = wasm_v128_and(wasm_u16x8_shr(v, 4), nibble);  // bytes have no fast shift on x86
      }
      UNROLL for (int t = 0; t < tokens; t++) {
        const int8_t *q = x_block(x, stride, t, b)->q + 4 * c;
        v128_t x_low = splat_at(q), x_high = splat_at(q + 16);
        UNROLL for (int g = 0; g < groups; g++) {
          sum[g * tokens + t] = dot(x_high, high[g], dot(x_low, low[g], sum[g * tokens + t]));
        }
      }
    }
    UNROLL for (int g = 0; g < groups; g++) {
      v128_t w_scale = load_f16(scales + ((uint32_t)g * nb + b) * 4);
      UNROLL for (int t = 0; t < tokens; t++) {
        add_block(sum[g * tokens + t], w_scale, x_block(x, stride, t, b), &acc[g * tokens + t]);
      }
    }
  }
}

INLINE void q8_tile_direct(const Weight *w, uint32_t row, const uint8_t *x, uint32_t stride, int groups, int tokens,
                           v128_t *acc) {
  const uint32_t nb = w->n_in / QBLOCK;
  const uint8_t *values = bytes_at(w->values) + row / GROUP * nb * 128;
  const float *scales = f32_at(w->scales) + row / GROUP * nb * 4;
  for (uint32_t b = 0; b < nb; b++) {
    v128_t sum[groups * tokens], v[groups];
    UNROLL for (int t = 0; t < tokens; t++) {
      v128_t offset = splat_at(&x_block(x, stride, t, b)->q8_offset);
      UNROLL for (int g = 0; g < groups; g++)
        sum[g * tokens + t] = offset;
    }
    UNROLL for (int c = 0; c < 8; c++) {
      UNROLL for (int g = 0; g < groups; g++)
        v[g] = load(values + ((uint32_t)g * nb + b) * 128 + 16 * c);
      UNROLL for (int t = 0; t < tokens; t++) {
        v128_t q = splat_at(x_block(x, stride, t, b)->q + 4 * c);
        UNROLL for (int g = 0; g < groups; g++)
          sum[g * tokens + t] = dot(q, v[g], sum[g * tokens + t]);
      }
    }
    UNROLL for (int g = 0; g < groups; g++) {
      v128_t w_scale = load(scales + ((uint32_t)g * nb + b) * 4);
      UNROLL for (int t = 0; t < tokens; t++) {
        add_block(sum[g * tokens + t], w_scale, x_block(x, stride, t, b), &acc[g * tokens + t]);
      }
    }
  }
}

INLINE void q8_tile_split(const Weight *w, uint32_t row, const uint8_t *x, uint32_t stride, int groups, int tokens,
                          v128_t *acc) {
  const v128_t nibble = constant_i32(0x0f0f0f0f);
  const uint32_t nb = w->n_in / QBLOCK;
  const uint8_t *values = bytes_at(w->values) + row / GROUP * nb * 128;
  const float *scales = f32_at(w->scales) + row / GROUP * nb * 4;
  for (uint32_t b = 0; b < nb; b++) {
    UNROLL for (int g = 0; g < groups; g++) {
      v128_t sum_low[tokens], sum_high[tokens];
      UNROLL for (int t = 0; t < tokens; t++) {
        sum_low[t] = wasm_i32x4_splat(0);
        sum_high[t] = splat_at(&x_block(x, stride, t, b)->offset);
      }
      UNROLL for (int c = 0; c < 8; c++) {
        v128_t v = load(values + ((uint32_t)g * nb + b) * 128 + 16 * c);
        v128_t low = wasm_v128_and(v, nibble), high = wasm_v128_and(wasm_u16x8_shr(v, 4), nibble);
        UNROLL for (int t = 0; t < tokens; t++) {
          v128_t q = splat_at(x_block(x, stride, t, b)->q + 4 * c);
          sum_low[t] = dot(q, low, sum_low[t]);
          sum_high[t] = dot(q, high, sum_high[t]);
        }
      }
      v128_t w_scale = load(scales + ((uint32_t)g * nb + b) * 4);
      UNROLL for (int t = 0; t < tokens; t++) {
        v128_t sum = wasm_i32x4_add(wasm_i32x4_shl(sum_high[t], 4), sum_low[t]);
        add_block(sum, w_scale, x_block(x, stride, t, b), &acc[g * tokens + t]);
      }
    }
  }
}

INLINE void q8_tile(const Weight *w, uint32_t row, const uint8_t *x, uint32_t stride, int groups, int tokens,
                    v128_t *acc) {
  if (dot_kind() == DOT_SPLIT) {
    q8_tile_split(w, row, x, stride, groups, tokens, acc);
  } else {
    q8_tile_direct(w, row, x, stride, groups, tokens, acc);
  }
}
