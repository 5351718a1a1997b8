// KV pages. A page is PAGE positions of keys [kv_heads][PAGE / 8][head_dim][8], 8 positions side by side, then of
// values [kv_heads][head_dim / 8][PAGE][8], 8 dimensions side by side; f32 or f16. Attention reads either in one
// stream.
#pragma once
#include "ops.h"

#define KV_LANES 8u

typedef struct {
  uint32_t table, pages;  // as CacheDescriptor in records.py
} Cache;

INLINE uint32_t kv_bytes(uint32_t kv) { return kv == KV_F16 ? 2 : 4; }

// Address of the page of a position.
INLINE uint32_t page_of(const Cache *cache, uint32_t position) {
  return u32_at(cache->table)[position / PAGE % cache->pages];
}

INLINE uint32_t values_of(uint32_t page, uint32_t kv_heads, uint32_t head_dim, uint32_t kv) {
  return page + PAGE * kv_heads * head_dim * kv_bytes(kv);
}

// Element of (head, position in page, dimension) in the keys; dimensions are KV_LANES elements apart.
INLINE uint32_t key_index(uint32_t head, uint32_t slot, uint32_t head_dim, uint32_t d) {
  return ((head * (PAGE / KV_LANES) + slot / KV_LANES) * head_dim + d) * KV_LANES + slot % KV_LANES;
}

// Element of (head, position in page, dimension d, a multiple of 4) in the values; positions are KV_LANES elements
// apart.
INLINE uint32_t value_index(uint32_t head, uint32_t slot, uint32_t head_dim, uint32_t d) {
  return ((head * (head_dim / KV_LANES) + d / KV_LANES) * PAGE + slot) * KV_LANES + d % KV_LANES;
}
