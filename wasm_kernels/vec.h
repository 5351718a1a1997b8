// Short names for the SIMD operations that every kernel uses, and the few that differ between the two builds.
#pragma once
#include <stdint.h>
#include <wasm_simd128.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("clang loop unroll(full)")
// A loop whose sums stay in registers. Unrolled, LLVM would regroup the sums and move loads to the front until far more
// values are alive than there are registers, which V8 does not mend.
#define IN_TURN _Pragma("clang loop unroll(disable)")

// Most sums that a tile of products has. x86 has 16 vector registers; its operands need the others. Arrays of a tile
// are this long rather than just long enough: of a length that inlining has yet to reveal, they would stay in memory.
#define TILE_SUMS 8

INLINE v128_t load(const void *p) { return wasm_v128_load(p); }
INLINE void store(void *p, v128_t v) { wasm_v128_store(p, v); }
INLINE v128_t splat(float x) { return wasm_f32x4_splat(x); }
// 4 bytes of memory in every lane.
INLINE v128_t splat_at(const void *p) { return wasm_v128_load32_splat(p); }
INLINE v128_t add(v128_t a, v128_t b) { return wasm_f32x4_add(a, b); }
INLINE v128_t sub(v128_t a, v128_t b) { return wasm_f32x4_sub(a, b); }
INLINE v128_t mul(v128_t a, v128_t b) { return wasm_f32x4_mul(a, b); }

// A constant in every lane, as something the compiler knows nothing about. LLVM repeats a known constant wherever it is
// used, and V8 builds it anew each time, in four instructions; of an unknown one they keep a copy made before the loop.
INLINE v128_t constant(float x) {
  __asm__("" : "+r"(x));
  return wasm_f32x4_splat(x);
}
INLINE v128_t constant_i32(int32_t x) {
  __asm__("" : "+r"(x));
  return wasm_i32x4_splat(x);
}

// a * b + c, rounded twice in every build. A fused one would be faster, but the relaxed build could then differ in the
// last bit from the plain build and from machine to machine, and one bit is enough to round an activation to another
// int8: NLL moves by 0.1 to 0.2 %. As it is, all builds give the same bits everywhere.
INLINE v128_t madd(v128_t a, v128_t b, v128_t c) { return wasm_f32x4_add(wasm_f32x4_mul(a, b), c); }

INLINE float sum_lanes(v128_t v) {
  v = add(v, wasm_i32x4_shuffle(v, v, 2, 3, 0, 1));
  return wasm_f32x4_extract_lane(v, 0) + wasm_f32x4_extract_lane(v, 1);
}

INLINE float max_lanes(v128_t v) {
  v = wasm_f32x4_pmax(v, wasm_i32x4_shuffle(v, v, 2, 3, 0, 1));
  v = wasm_f32x4_pmax(v, wasm_i32x4_shuffle(v, v, 1, 0, 3, 2));
  return wasm_f32x4_extract_lane(v, 0);
}

INLINE int32_t sum_lanes_i32(v128_t v) {
  v = wasm_i32x4_add(v, wasm_i32x4_shuffle(v, v, 2, 3, 0, 1));
  return wasm_i32x4_extract_lane(v, 0) + wasm_i32x4_extract_lane(v, 1);
}

// The first n (0 to 4) lanes of v to p.
INLINE void store_first(float *p, v128_t v, uint32_t n) {
  if (n >= 4) {
    store(p, v);
    return;
  }
  if (n > 0) p[0] = wasm_f32x4_extract_lane(v, 0);
  if (n > 1) p[1] = wasm_f32x4_extract_lane(v, 1);
  if (n > 2) p[2] = wasm_f32x4_extract_lane(v, 2);
}

// The first n (1 to 4) floats at p, the other lanes 0.
INLINE v128_t load_first(const float *p, uint32_t n) {
  if (n >= 4) return load(p);
  return wasm_f32x4_make(p[0], n > 1 ? p[1] : 0.0f, n > 2 ? p[2] : 0.0f, 0.0f);
}

// 4 bf16 as f32.
INLINE v128_t load_bf16(const uint16_t *p) { return wasm_i32x4_shl(wasm_u32x4_load16x4(p), 16); }

INLINE float bf16_at(const uint16_t *p) {
  union {
    uint32_t u;
    float f;
  } v = {.u = (uint32_t)*p << 16};
  return v.f;
}

INLINE v128_t load_bf16_first(const uint16_t *p, uint32_t n) {
  if (n >= 4) return load_bf16(p);
  return wasm_f32x4_make(bf16_at(p), n > 1 ? bf16_at(p + 1) : 0.0f, n > 2 ? bf16_at(p + 2) : 0.0f, 0.0f);
}

// 4 f16 as f32 times 2^-112: sign, exponent and mantissa moved into place, no more. Finite values only.
INLINE v128_t load_f16_scaled(const uint16_t *p) {
  return wasm_v128_and(wasm_i32x4_shl(wasm_i32x4_load16x4(p), 13), constant_i32((int)0x8fffe000));
}
#define F16_UNSCALE 0x1p112f

// 4 f16 as f32, subnormals included.
INLINE v128_t load_f16(const uint16_t *p) { return mul(load_f16_scaled(p), constant(F16_UNSCALE)); }

// 4 f32 to the nearest f16, ties to even, clamped to the largest finite one; stored as 4 u16.
INLINE void store_f16(uint16_t *p, v128_t f) {
  v128_t sign = wasm_v128_and(f, wasm_i32x4_splat((int)0x80000000));
  v128_t a = wasm_f32x4_pmin(wasm_v128_xor(f, sign), splat(65504.0f));
  v128_t odd = wasm_v128_and(wasm_u32x4_shr(a, 13), wasm_i32x4_splat(1));
  v128_t normal = wasm_i32x4_add(wasm_i32x4_add(a, odd), wasm_i32x4_splat(0xfff - (112 << 23)));
  normal = wasm_u32x4_shr(normal, 13);
  v128_t small = wasm_i32x4_sub(add(a, splat(0.5f)), splat(0.5f));  // 0.5 has the unit of f16's subnormals
  v128_t bits = wasm_v128_bitselect(small, normal, wasm_f32x4_lt(a, splat(0x1p-14f)));
  bits = wasm_v128_or(bits, wasm_u32x4_shr(sign, 16));
  wasm_v128_store64_lane(p, wasm_u16x8_narrow_i32x4(bits, bits), 0);
}
