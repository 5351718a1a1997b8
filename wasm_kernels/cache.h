// KV pages. A page is PAGE positions of keys [kv_heads][PAGE / 4][head_dim][4], 4 positions a vector, then of values
// [kv_heads][head_dim / 4][PAGE][4], 4 dimensions a vector; f32 or f16.
#pragma once
#include "ops.h"

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

// Element of (head, position in page, dimension) in the keys; dimensions are 4 elements apart.
INLINE uint32_t key_index(uint32_t head, uint32_t slot, uint32_t head_dim, uint32_t d) {
  return ((head * (PAGE / 4) + slot / 4) * head_dim + d) * 4 + slot % 4;
}

// Element of (head, position in page, dimension d, a multiple of 4) in the values; positions are 4 elements apart.
INLINE uint32_t value_index(uint32_t head, uint32_t slot, uint32_t head_dim, uint32_t d) {
  return ((head * (head_dim / 4) + d / 4) * PAGE + slot) * 4;
}
