// REPACK: a weight's plain rows into panels of 16 interleaved rows, in place: a vector lane is a row, and a panel is
// read from its beginning to its end.
//
//   Q4, Q8 values [rows / 16][words][16] of 32-bit words: 4 bytes (8 or 4 columns) of each row side by side;
//                 Q8's bytes biased as dot_kind says
//   scales        [rows / 16][n_in / 32][16]: f16 for Q4, f32 for Q8
//   bf16          [rows / 16][n_in][16]
// Rows past the last are zero (their scales are), up to a whole panel.
#include "dot.h"
#include "matmul.h"
#include "quantize.h"
#include "scratch.h"

// 16 rows of `words` 32-bit words at p: word i of each row side by side. `flip` is xored into every word.
static void interleave_u32(uint32_t *p, uint32_t words, uint32_t flip, uint32_t *scratch) {
  const v128_t mask = wasm_i32x4_splat((int)flip);
  __builtin_memcpy(scratch, p, words * PANEL * 4);
  for (uint32_t r = 0; r < PANEL; r += GROUP, p += GROUP) {
    const uint32_t *a = scratch + r * words, *b = a + words, *c = b + words, *d = c + words;
    uint32_t i = 0;
    for (; i + 4 <= words; i += 4) {
      v128_t va = load(a + i), vb = load(b + i), vc = load(c + i), vd = load(d + i);
      v128_t ab01 = wasm_i32x4_shuffle(va, vb, 0, 4, 1, 5), ab23 = wasm_i32x4_shuffle(va, vb, 2, 6, 3, 7);
      v128_t cd01 = wasm_i32x4_shuffle(vc, vd, 0, 4, 1, 5), cd23 = wasm_i32x4_shuffle(vc, vd, 2, 6, 3, 7);
      store(p + PANEL * i, wasm_v128_xor(wasm_i64x2_shuffle(ab01, cd01, 0, 2), mask));
      store(p + PANEL * (i + 1), wasm_v128_xor(wasm_i64x2_shuffle(ab01, cd01, 1, 3), mask));
      store(p + PANEL * (i + 2), wasm_v128_xor(wasm_i64x2_shuffle(ab23, cd23, 0, 2), mask));
      store(p + PANEL * (i + 3), wasm_v128_xor(wasm_i64x2_shuffle(ab23, cd23, 1, 3), mask));
    }
    for (; i < words; i++) store(p + PANEL * i, wasm_v128_xor(wasm_u32x4_make(a[i], b[i], c[i], d[i]), mask));
  }
}

static void interleave_u16(uint16_t *p, uint32_t words, uint16_t *scratch) {
  __builtin_memcpy(scratch, p, words * PANEL * 2);
  for (uint32_t i = 0; i < words; i++) {
    for (uint32_t r = 0; r < PANEL; r++) p[PANEL * i + r] = scratch[r * words + i];
  }
}

static void repack_panel(const RepackOp *op, uint32_t index, void *scratch) {
  const uint32_t cols = op->cols, nb = cols / QBLOCK;
  const uint32_t row = index * PANEL, given = min_u32(op->rows - row, PANEL);
  const uint32_t row_bytes = op->quant == QUANT_BF16 ? cols * 2 : op->quant == QUANT_Q8 ? cols : cols / 2;
  const uint32_t scale_bytes = op->quant == QUANT_Q8 ? nb * 4 : nb * 2;
  uint8_t *values = bytes_at(op->values) + row * row_bytes, *scales = bytes_at(op->scales) + row * scale_bytes;
  if (given < PANEL) __builtin_memset(values + given * row_bytes, 0, (PANEL - given) * row_bytes);
  if (op->quant == QUANT_BF16) {
    interleave_u16((uint16_t *)values, cols, scratch);
    return;
  }
  if (given < PANEL) __builtin_memset(scales + given * scale_bytes, 0, (PANEL - given) * scale_bytes);
  if (op->quant == QUANT_Q8) {
    interleave_u32((uint32_t *)values, cols / 4, dot_kind() == DOT_UNSIGNED ? 0x80808080u : 0, scratch);
    interleave_u32((uint32_t *)scales, nb, 0, scratch);
  } else {
    interleave_u32((uint32_t *)values, cols / 8, 0, scratch);
    interleave_u16((uint16_t *)scales, nb, scratch);
  }
}

void op_repack(const RepackOp *op, Thread th) {
  if (op->cols > MAX_COLUMNS) __builtin_trap();
  Range panels = share(div_up(op->rows, PANEL), th);
  for (uint32_t i = panels.begin; i < panels.end; i++) repack_panel(op, i, thread_scratch(th));
}
