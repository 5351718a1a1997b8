// The integer dot product of each build, and how it wants Q8 weights stored.
#pragma once
#include "vec.h"

enum { DOT_PAIRS, DOT_UNSIGNED, DOT_SIGNED };

#ifdef __wasm_relaxed_simd__

// Four signed bytes of x times four bytes of w, added to each lane of sum. Machines differ in whether they take w as
// signed or unsigned, so that only 0..127 is portable. Q4's nibbles are. Q8's bytes are not; we ask the machine:
//   DOT_UNSIGNED (x86 with AVX-VNNI): weights are stored as q + 128, one dot product, less 128 * sum(x);
//   DOT_SIGNED (Arm): they are stored as q, one dot product;
//   DOT_PAIRS (other x86): the dot product is made of two instructions and more, of which dot_pairs is the first.
// All give the same integers.
INLINE v128_t dot(v128_t x, v128_t w, v128_t sum) { return wasm_i32x4_relaxed_dot_i8x16_i7x16_add(x, w, sum); }

// Pairs of signed bytes of x times bytes 0..127 of w, added to 16-bit lanes: portable as long as they do not overflow.
INLINE v128_t dot_pairs(v128_t x, v128_t w) { return wasm_i16x8_relaxed_dot_i8x16_i7x16(x, w); }

// Pairs of 16-bit lanes added to 32-bit ones; `ones` is 1 in each 16-bit lane.
INLINE v128_t add_pairs(v128_t pairs, v128_t ones, v128_t sum) {
  return wasm_i32x4_add(sum, wasm_i32x4_dot_i16x8(pairs, ones));
}

INLINE int dot_kind(void) {
  static const volatile int8_t x = -127, w = -1;  // volatile: the answer is the machine's, not the compiler's
  int32_t sum = wasm_i32x4_extract_lane(dot(wasm_i8x16_splat(x), wasm_i8x16_splat(w), wasm_i32x4_splat(0)), 0);
  return sum == 4 * -127 * 255 ? DOT_UNSIGNED : sum == 4 * 127 ? DOT_SIGNED : DOT_PAIRS;
}

#else

// Two 16-bit lanes of x times two of w, added to each lane of sum. Q8 weights are stored as q + 128.
INLINE v128_t dot(v128_t x, v128_t w, v128_t sum) { return wasm_i32x4_add(sum, wasm_i32x4_dot_i16x8(x, w)); }

INLINE int dot_kind(void) { return DOT_UNSIGNED; }

#endif
