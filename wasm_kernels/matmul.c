#include "matmul.h"
#ifdef __wasm_relaxed_simd__
#include "tiles_relaxed.h"
#else
#include "tiles_plain.h"
#endif

// acc[g * tokens + t] += rows row + 4g to row + 4g + 3 times token t; x is token 0's row, the others `stride` bytes on.
typedef void Tile(const Weight *w, uint32_t row, const uint8_t *x, uint32_t stride, int groups, int tokens,
                  v128_t *acc);

INLINE void bf16_tile(const Weight *w, uint32_t row, const uint8_t *x, uint32_t stride, int groups, int tokens,
                      v128_t *acc) {
  const uint16_t *values = u16_at(w->values) + panel(row) * w->n_in + lane(row);
  for (uint32_t i = 0; i < w->n_in; i++) {
    v128_t v[TILE_SUMS];
    UNROLL for (int g = 0; g < groups; g++)
      v[g] = load_bf16(values + i * PANEL + GROUP * g);
    UNROLL for (int t = 0; t < tokens; t++) {
      v128_t xi = splat_at((const float *)(x + (uint32_t)t * stride) + i);
      UNROLL for (int g = 0; g < groups; g++)
        acc[g * tokens + t] = madd(v[g], xi, acc[g * tokens + t]);
    }
  }
}

// One tile into dst, whose row 0 is `row`; rows from `end` on are not written.
INLINE void write_tile(Tile *tile, const Weight *w, uint32_t row, uint32_t end, const uint8_t *x, uint32_t x_stride,
                       int groups, int tokens, float *dst, uint32_t stride) {
  v128_t acc[TILE_SUMS];
  UNROLL for (int i = 0; i < groups * tokens; i++)
    acc[i] = splat(0.0f);
  tile(w, row, x, x_stride, groups, tokens, acc);
  UNROLL for (int g = 0; g < groups; g++) {
    uint32_t first = row + GROUP * (uint32_t)g, rows = end > first ? end - first : 0;
    UNROLL for (int t = 0; t < tokens; t++) {
      store_first(dst + (uint32_t)t * stride + GROUP * (uint32_t)g, acc[g * tokens + t], rows);
    }
  }
}

// All rows for one block of tokens. One token streams whole panels, many take tiles of 8 rows by 4 tokens.
INLINE void sweep(Tile *tile, const Weight *w, Range rows, const uint8_t *x, uint32_t x_stride, uint32_t tokens,
                  float *dst, uint32_t stride) {
  uint32_t row = rows.begin;
  if (tokens == 1) {
    for (; row + PANEL <= rows.end; row += PANEL) {
      write_tile(tile, w, row, rows.end, x, x_stride, 4, 1, dst + (row - rows.begin), stride);
    }
  }
  for (; row < rows.end; row += 2 * GROUP) {
    float *to = dst + (row - rows.begin);
    uint32_t t = 0;
    for (; t + 4 <= tokens; t += 4) {
      write_tile(tile, w, row, rows.end, x + t * x_stride, x_stride, 2, 4, to + t * stride, stride);
    }
    for (; t < tokens; t++) {
      write_tile(tile, w, row, rows.end, x + t * x_stride, x_stride, 2, 1, to + t * stride, stride);
    }
  }
}

void matmul(const Weight *w, Range rows, const Input *input, Range tokens, float *dst, uint32_t stride) {
  uint32_t x_stride = w->quant == QUANT_BF16 ? w->n_in * 4 : quantized_bytes(w->n_in);
  const uint8_t *x = bytes_at(w->quant == QUANT_BF16 ? input->f32 : input->quantized) + tokens.begin * x_stride;
  for (uint32_t t = tokens.begin; t < tokens.end; t += TOKEN_BLOCK) {
    uint32_t n = min_u32(TOKEN_BLOCK, tokens.end - t);
    if (w->quant == QUANT_Q4) {
      sweep(q4_tile, w, rows, x, x_stride, n, dst, stride);
    } else if (w->quant == QUANT_Q8) {
      sweep(q8_tile, w, rows, x, x_stride, n, dst, stride);
    } else {
      sweep(bf16_tile, w, rows, x, x_stride, n, dst, stride);
    }
    x += TOKEN_BLOCK * x_stride;
    dst += TOKEN_BLOCK * stride;
  }
}
