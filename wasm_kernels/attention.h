// The inner part of ATTENTION: a tile of query rows against a range of positions, with an online softmax.
#pragma once
#include "cache.h"
#include "mathf.h"

#define TILE 4u  // query rows of a tile; they share one KV head
#define MAX_HEAD_DIM 512u

// A tile's rows, and what has been summed for them: m the largest score, l the sum of exp(score - m), o the weighted
// sum of values. Rows beyond the last see no position: begin = end = 0.
typedef struct {
  float q[TILE][MAX_HEAD_DIM], o[TILE][MAX_HEAD_DIM], p[TILE][PAGE];
  float m[TILE], l[TILE];
  uint32_t begin[TILE], end[TILE];  // positions that a row sees
} Tile;

typedef struct {
  const Cache *cache;
  uint32_t kv_heads, head_dim, kv;
} Keys;

// Add positions [begin, end) of KV head `head` to the first `rows` (1, 2 or 4) rows of the tile.
void attend(Tile *tile, const Keys *keys, uint32_t head, uint32_t rows, uint32_t begin, uint32_t end);
