#include "attention.h"

// 4 elements of a page. f16 comes 2^-112 times too small; whoever multiplies by it has made up for that.
INLINE v128_t load_kv(uint32_t base, uint32_t index, uint32_t kv) {
  return kv == KV_F16 ? load_f16_scaled(u16_at(base) + index) : load(f32_at(base) + index);
}

// p[row][4 * group + lane] = score of `groups` groups of 4 positions, from `group` on; both even.
INLINE void score_groups(Tile *tile, uint32_t keys, uint32_t head_dim, uint32_t kv, uint32_t rows, uint32_t group,
                         uint32_t groups) {
  v128_t acc[TILE_SUMS], k[TILE_SUMS];
  UNROLL for (uint32_t i = 0; i < rows * groups; i++)
    acc[i] = splat(0);
  for (uint32_t d = 0; d < head_dim; d++) {
    UNROLL for (uint32_t g = 0; g < groups; g++)
      k[g] = load_kv(keys, (((group + g) / 2 * head_dim + d) * 2 + g % 2) * 4, kv);
    UNROLL for (uint32_t r = 0; r < rows; r++) {
      v128_t q = splat_at(&tile->q[r][d]);
      UNROLL for (uint32_t g = 0; g < groups; g++)
        acc[r * groups + g] = madd(q, k[g], acc[r * groups + g]);
    }
  }
  UNROLL for (uint32_t r = 0; r < rows; r++) {
    UNROLL for (uint32_t g = 0; g < groups; g++)
      store(&tile->p[r][4 * (group + g)], acc[r * groups + g]);
  }
}

// Scores of slots [begin, end) of a page to exp(score - m); returns by how much the sums so far must shrink.
// Slots outside the row's own range become 0.
static float soften(Tile *tile, uint32_t row, uint32_t base, uint32_t begin, uint32_t end, float unit) {
  float *p = tile->p[row];
  const v128_t first = wasm_i32x4_splat((int)max_u32(tile->begin[row], base) - (int)base);
  const v128_t last = wasm_i32x4_splat((int)tile->end[row] - (int)base);
  v128_t slot = wasm_i32x4_add(wasm_i32x4_splat((int)begin), wasm_i32x4_make(0, 1, 2, 3));
  v128_t top = splat(tile->m[row]);
  for (uint32_t i = begin; i < end; i += 4, slot = wasm_i32x4_add(slot, wasm_i32x4_splat(4))) {
    v128_t seen = wasm_v128_and(wasm_i32x4_ge(slot, first), wasm_i32x4_lt(slot, last));
    v128_t score = wasm_v128_bitselect(load(p + i), splat(-__builtin_inff()), seen);
    store(p + i, score);
    top = wasm_f32x4_pmax(top, score);
  }
  const float m = max_lanes(top);
  if (m == -__builtin_inff()) {
    for (uint32_t i = begin; i < end; i += 4) store(p + i, splat(0));
    return 1.0f;
  }
  v128_t sum = splat(0);
  for (uint32_t i = begin; i < end; i += 4) {
    v128_t e = exp4(sub(load(p + i), splat(m)));
    sum = add(sum, e);
    store(p + i, mul(e, splat(unit)));
  }
  const float shrink = exp1(tile->m[row] - m);
  tile->l[row] = tile->l[row] * shrink + sum_lanes(sum);
  tile->m[row] = m;
  return shrink;
}

// o[row][4 * quad ..] = o * shrink + sum of p * value over slots [begin, end), for `quads` quads of dimensions
// from `quad` on; both even.
INLINE void weigh_quads(Tile *tile, uint32_t values, uint32_t kv, uint32_t rows, const float *shrink, uint32_t quad,
                        uint32_t quads, uint32_t begin, uint32_t end) {
  v128_t acc[TILE_SUMS], v[TILE_SUMS];
  UNROLL for (uint32_t r = 0; r < rows; r++) {
    UNROLL for (uint32_t k = 0; k < quads; k++) {
      acc[r * quads + k] = mul(load(&tile->o[r][4 * (quad + k)]), splat(shrink[r]));
    }
  }
  for (uint32_t slot = begin; slot < end; slot++) {
    UNROLL for (uint32_t k = 0; k < quads; k++)
      v[k] = load_kv(values, (((quad + k) / 2 * PAGE + slot) * 2 + k % 2) * 4, kv);
    UNROLL for (uint32_t r = 0; r < rows; r++) {
      v128_t p = splat_at(&tile->p[r][slot]);
      UNROLL for (uint32_t k = 0; k < quads; k++)
        acc[r * quads + k] = madd(p, v[k], acc[r * quads + k]);
    }
  }
  UNROLL for (uint32_t r = 0; r < rows; r++) {
    UNROLL for (uint32_t k = 0; k < quads; k++)
      store(&tile->o[r][4 * (quad + k)], acc[r * quads + k]);
  }
}

// Slots [begin, end) of one page whose first position is `base`; always TILE_SUMS sums in registers.
INLINE void attend_page(Tile *tile, const Keys *k, uint32_t kv, uint32_t head, uint32_t rows, uint32_t base,
                        uint32_t begin, uint32_t end) {
  const uint32_t page = page_of(k->cache, base), size = kv_bytes(kv), wide = TILE_SUMS / rows;
  const uint32_t keys = page + key_index(head, 0, k->head_dim, 0) * size;
  const uint32_t values = values_of(page, k->kv_heads, k->head_dim, kv) + value_index(head, 0, k->head_dim, 0) * size;
  uint32_t group = begin / KV_LANES * 2;
  const uint32_t groups = div_up(end, KV_LANES) * 2, quads = k->head_dim / 4;
  for (; group + wide <= groups; group += wide) score_groups(tile, keys, k->head_dim, kv, rows, group, wide);
  for (; group < groups; group += 2) score_groups(tile, keys, k->head_dim, kv, rows, group, 2);
  float shrink[TILE];
  const float unit = kv == KV_F16 ? F16_UNSCALE : 1.0f;
  for (uint32_t r = 0; r < rows; r++) shrink[r] = soften(tile, r, base, begin / 4 * 4, div_up(end, 4) * 4, unit);
  uint32_t quad = 0;
  for (; quad + wide <= quads; quad += wide) weigh_quads(tile, values, kv, rows, shrink, quad, wide, begin, end);
  for (; quad < quads; quad += 2) weigh_quads(tile, values, kv, rows, shrink, quad, 2, begin, end);
}

void attend(Tile *tile, const Keys *k, uint32_t head, uint32_t rows, uint32_t begin, uint32_t end) {
  for (uint32_t base = begin / PAGE * PAGE; base < end; base += PAGE) {
    const uint32_t from = max_u32(begin, base) - base, to = min_u32(end, base + PAGE) - base;
    if (k->kv == KV_F16) {
      if (rows == 1)
        attend_page(tile, k, KV_F16, head, 1, base, from, to);
      else if (rows == 2)
        attend_page(tile, k, KV_F16, head, 2, base, from, to);
      else
        attend_page(tile, k, KV_F16, head, 4, base, from, to);
    } else {
      if (rows == 1)
        attend_page(tile, k, KV_F32, head, 1, base, from, to);
      else if (rows == 2)
        attend_page(tile, k, KV_F32, head, 2, base, from, to);
      else
        attend_page(tile, k, KV_F32, head, 4, base, from, to);
    }
  }
}
