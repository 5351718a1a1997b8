// Tiles of quantized products with the relaxed dot product (dot.h): 4 * groups rows by `tokens` tokens, all columns.
#pragma once
#include "dot.h"
#include "matmul.h"
#include "quantize.h"

INLINE const XBlock *x_block(const uint8_t *x, uint32_t stride, int token, uint32_t b) {
  return (const XBlock *)(x + (uint32_t)token * stride) + b;
}

INLINE const XSigns *x_signs(const uint8_t *x, uint32_t stride, int token, uint32_t b, uint32_t blocks) {
  return (const XSigns *)(x_block(x, stride, token, blocks)) + b;
}

INLINE void add_block(v128_t sum, v128_t w_scale, const XBlock *x, v128_t *acc) {
  *acc = madd(wasm_f32x4_convert_i32x4(sum), mul(w_scale, splat_at(&x->scale)), *acc);
}

INLINE void q4_tile_dot(const Weight *w, uint32_t row, const uint8_t *x, uint32_t stride, int groups, int tokens,
                        v128_t *acc) {
  const v128_t nibble = constant_i32(0x0f0f0f0f);
  const uint32_t nb = w->n_in / QBLOCK;
  const uint8_t *values = bytes_at(w->values) + panel(row) * (w->n_in / 2) + lane(row) * 4;
  const uint16_t *scales = u16_at(w->scales) + panel(row) * nb + lane(row);
  for (uint32_t b = 0; b < nb; b++) {
    v128_t sum[TILE_SUMS], v[TILE_SUMS], low[TILE_SUMS], high[TILE_SUMS];
    UNROLL for (int t = 0; t < tokens; t++) {
      v128_t offset = splat_at(&x_block(x, stride, t, b)->offset);
      UNROLL for (int g = 0; g < groups; g++)
        sum[g * tokens + t] = offset;
    }
    IN_TURN for (int c = 0; c < 16; c += 4) {
      UNROLL for (int g = 0; g < groups; g++) {
        v[g] = load(values + b * PANEL * 16 + PANEL * c + GROUP * 4 * g);
        low[g] = wasm_v128_and(v[g], nibble);
      }
      UNROLL for (int t = 0; t < tokens; t++) {
        v128_t q = splat_at(x_block(x, stride, t, b)->q + c);
        UNROLL for (int g = 0; g < groups; g++)
          sum[g * tokens + t] = dot(q, low[g], sum[g * tokens + t]);
      }
      UNROLL for (int g = 0; g < groups; g++)
        high[g] = wasm_v128_and(wasm_u16x8_shr(v[g], 4), nibble);  // bytes have no fast shift on x86
      UNROLL for (int t = 0; t < tokens; t++) {
        v128_t q = splat_at(x_block(x, stride, t, b)->q + c + 16);
        UNROLL for (int g = 0; g < groups; g++)
          sum[g * tokens + t] = dot(q, high[g], sum[g * tokens + t]);
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

INLINE void q8_tile_dot(const Weight *w, uint32_t row, const uint8_t *x, uint32_t stride, int groups, int tokens,
                        v128_t *acc) {
  const uint32_t nb = w->n_in / QBLOCK;
  const uint8_t *values = bytes_at(w->values) + panel(row) * w->n_in + lane(row) * 4;
  const float *scales = f32_at(w->scales) + panel(row) * nb + lane(row);
  for (uint32_t b = 0; b < nb; b++) {
    v128_t sum[TILE_SUMS], v[TILE_SUMS];
    UNROLL for (int t = 0; t < tokens; t++) {
      v128_t offset = splat_at(&x_block(x, stride, t, b)->q8_offset);
      UNROLL for (int g = 0; g < groups; g++)
        sum[g * tokens + t] = offset;
    }
    IN_TURN for (int c = 0; c < 8; c++) {
      UNROLL for (int g = 0; g < groups; g++)
        v[g] = load(values + b * PANEL * 32 + PANEL * 4 * c + GROUP * 4 * g);
      UNROLL for (int t = 0; t < tokens; t++) {
        v128_t q = splat_at(x_block(x, stride, t, b)->q + 4 * c);
        UNROLL for (int g = 0; g < groups; g++)
          sum[g * tokens + t] = dot(q, v[g], sum[g * tokens + t]);
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

// Without a whole dot product: the 16-bit sums of a block's 8 pairs are at most 8 * 2 * 15 * 127, so that they are
// added up in 16 bits and widened once a block.
INLINE void q4_tile_pairs(const Weight *w, uint32_t row, const uint8_t *x, uint32_t stride, int groups, int tokens,
                          v128_t *acc) {
  const v128_t nibble = constant_i32(0x0f0f0f0f), ones = constant_i32(0x00010001);
  const uint32_t nb = w->n_in / QBLOCK;
  const uint8_t *values = bytes_at(w->values) + panel(row) * (w->n_in / 2) + lane(row) * 4;
  const uint16_t *scales = u16_at(w->scales) + panel(row) * nb + lane(row);
  for (uint32_t b = 0; b < nb; b++) {
    v128_t pairs[TILE_SUMS], v[TILE_SUMS], low[TILE_SUMS], high[TILE_SUMS];
    UNROLL for (int i = 0; i < groups * tokens; i++)
      pairs[i] = wasm_i32x4_splat(0);
    IN_TURN for (int c = 0; c < 16; c += 4) {
      UNROLL for (int g = 0; g < groups; g++) {
        v[g] = load(values + b * PANEL * 16 + PANEL * c + GROUP * 4 * g);
        low[g] = wasm_v128_and(v[g], nibble);
      }
      UNROLL for (int t = 0; t < tokens; t++) {
        v128_t q = splat_at(x_block(x, stride, t, b)->q + c);
        UNROLL for (int g = 0; g < groups; g++)
          pairs[g * tokens + t] = wasm_i16x8_add(pairs[g * tokens + t], dot_pairs(q, low[g]));
      }
      UNROLL for (int g = 0; g < groups; g++)
        high[g] = wasm_v128_and(wasm_u16x8_shr(v[g], 4), nibble);  // bytes have no fast shift on x86
      UNROLL for (int t = 0; t < tokens; t++) {
        v128_t q = splat_at(x_block(x, stride, t, b)->q + c + 16);
        UNROLL for (int g = 0; g < groups; g++)
          pairs[g * tokens + t] = wasm_i16x8_add(pairs[g * tokens + t], dot_pairs(q, high[g]));
      }
    }
    UNROLL for (int g = 0; g < groups; g++) {
      v128_t w_scale = load_f16(scales + b * PANEL + GROUP * g);
      UNROLL for (int t = 0; t < tokens; t++) {
        const XBlock *xb = x_block(x, stride, t, b);
        v128_t sum = add_pairs(pairs[g * tokens + t], ones, splat_at(&xb->offset));
        add_block(sum, w_scale, xb, &acc[g * tokens + t]);
      }
    }
  }
}

// Magnitudes of x are 0..127, and may take the place of weights in dot_pairs; their signs go to the weights. Where x is
// negative, flipping w's bits gives -w - 1, which q8_offset makes good.
INLINE void q8_tile_pairs(const Weight *w, uint32_t row, const uint8_t *x, uint32_t stride, int groups, int tokens,
                          v128_t *acc) {
  const v128_t ones = constant_i32(0x00010001);
  const uint32_t nb = w->n_in / QBLOCK;
  const uint8_t *values = bytes_at(w->values) + panel(row) * w->n_in + lane(row) * 4;
  const float *scales = f32_at(w->scales) + panel(row) * nb + lane(row);
  for (uint32_t b = 0; b < nb; b++) {
    v128_t sum[TILE_SUMS], v[TILE_SUMS];
    UNROLL for (int t = 0; t < tokens; t++) {
      v128_t offset = splat_at(&x_block(x, stride, t, b)->q8_offset);
      UNROLL for (int g = 0; g < groups; g++)
        sum[g * tokens + t] = offset;
    }
    IN_TURN for (int c = 0; c < 8; c++) {
      UNROLL for (int g = 0; g < groups; g++)
        v[g] = load(values + b * PANEL * 32 + PANEL * 4 * c + GROUP * 4 * g);
      UNROLL for (int t = 0; t < tokens; t++) {
        const XSigns *xs = x_signs(x, stride, t, b, nb);
        v128_t magnitude = splat_at(xs->magnitude + 4 * c), negative = splat_at(xs->negative + 4 * c);
        UNROLL for (int g = 0; g < groups; g++) {
          v128_t pairs = dot_pairs(wasm_v128_xor(v[g], negative), magnitude);
          sum[g * tokens + t] = add_pairs(pairs, ones, sum[g * tokens + t]);
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

INLINE void q4_tile(const Weight *w, uint32_t row, const uint8_t *x, uint32_t stride, int groups, int tokens,
                    v128_t *acc) {
  if (dot_kind() == DOT_PAIRS) {
    q4_tile_pairs(w, row, x, stride, groups, tokens, acc);
  } else {
    q4_tile_dot(w, row, x, stride, groups, tokens, acc);
  }
}

INLINE void q8_tile(const Weight *w, uint32_t row, const uint8_t *x, uint32_t stride, int groups, int tokens,
                    v128_t *acc) {
  if (dot_kind() == DOT_PAIRS) {
    q8_tile_pairs(w, row, x, stride, groups, tokens, acc);
  } else {
    q8_tile_dot(w, row, x, stride, groups, tokens, acc);
  }
}
