// exp, tanh and the activations on 4 lanes; log, sin and cos one at a time. Each is accurate to about 1e-7.
#pragma once
#include "records.h"
#include "vec.h"

// exp(x) for x up to 88: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2]. Below -60, and for -inf, it is 0: nobody here
// sees the difference, and what is multiplied by a result stays clear of subnormals, which are slow.
INLINE v128_t exp4(v128_t x) {
  v128_t tiny = wasm_f32x4_lt(x, constant(-60.0f));
  x = wasm_f32x4_pmax(x, constant(-60.0f));
  // x / ln 2 to the nearest integer: adding 1.5 * 2^23 leaves it in the low bits of the mantissa
  v128_t bits = add(mul(x, constant(1.44269504088896341f)), constant(12582912.0f));
  v128_t n = sub(bits, constant(12582912.0f));
  // ln 2 in two parts, so that n times the first is exact
  v128_t r = sub(sub(x, mul(n, constant(0.693359375f))), mul(n, constant(-2.12194440e-4f)));
  v128_t p = constant(1.9875691500e-4f);
  p = madd(p, r, constant(1.3981999507e-3f));
  p = madd(p, r, constant(8.3334519073e-3f));
  p = madd(p, r, constant(4.1665795894e-2f));
  p = madd(p, r, constant(1.6666665459e-1f));
  p = madd(p, r, constant(5.0000001201e-1f));
  p = add(madd(p, mul(r, r), r), constant(1.0f));
  v128_t two_n = wasm_i32x4_add(wasm_i32x4_shl(bits, 23), constant(1.0f));
  return wasm_v128_andnot(mul(p, two_n), tiny);
}

INLINE float exp1(float x) { return wasm_f32x4_extract_lane(exp4(splat(x)), 0); }

// tanh(x): odd polynomial below 0.625 (no cancellation there), 1 - 2 / (exp(2|x|) + 1) above.
INLINE v128_t tanh4(v128_t x) {
  v128_t sign = wasm_v128_and(x, constant_i32((int)0x80000000));
  v128_t a = wasm_v128_xor(x, sign);
  v128_t z = mul(x, x);
  v128_t p = constant(-5.70498872745e-3f);
  p = madd(p, z, constant(2.06390887954e-2f));
  p = madd(p, z, constant(-5.37397155531e-2f));
  p = madd(p, z, constant(1.33314422036e-1f));
  p = madd(p, z, constant(-3.33332819422e-1f));
  v128_t small = madd(mul(p, z), x, x);
  v128_t e = exp4(wasm_f32x4_pmin(add(a, a), constant(60.0f)));
  v128_t large = sub(constant(1.0f), wasm_f32x4_div(constant(2.0f), add(e, constant(1.0f))));
  return wasm_v128_bitselect(small, wasm_v128_or(large, sign), wasm_f32x4_lt(a, constant(0.625f)));
}

// The gate's activation, x / (1 + exp(-z)): SiLU with z = x; GELU in its tanh form with z = 2 sqrt(2 / pi) (x +
// 0.044715 x^3), because (1 + tanh(y)) / 2 = 1 / (1 + exp(-2 y)).
INLINE v128_t activate4(v128_t x, uint32_t act) {
  v128_t minus_z = wasm_f32x4_neg(x);
  if (act == ACT_GELU_TANH)
    minus_z = mul(madd(mul(mul(x, x), x), constant(0.044715f), x), constant(-1.5957691216057308f));
  return wasm_f32x4_div(x, add(constant(1.0f), exp4(wasm_f32x4_pmin(minus_z, constant(60.0f)))));
}

// ln(x) for finite x > 0: x = m 2^n with m in [sqrt(1/2), sqrt(2)), ln m = 2 artanh((m - 1) / (m + 1)).
INLINE double log1(double x) {
  union {
    double d;
    uint64_t u;
  } v = {.d = x};
  int n = (int)(v.u >> 52) - 1023;
  v.u = (v.u & 0xfffffffffffffull) | 0x3ff0000000000000ull;
  if (v.d > 1.4142135623730951) {
    v.d *= 0.5;
    n++;
  }
  double s = (v.d - 1) / (v.d + 1), z = s * s, term = s, sum = s;
  for (int k = 3; k < 20; k += 2) {
    term *= z;
    sum += term / k;
  }
  return 2 * sum + n * 0.69314718055994530942;
}

// Sine and cosine of x radians, |x| up to 2^20: reduced to [-pi/4, pi/4] in f64, then Taylor's series.
INLINE void sincos1(double x, float *sine, float *cosine) {
  double q = __builtin_rint(x * 0.63661977236758134308);
  double r = (x - q * 1.57079632673412561417) - q * 6.07710050650619224932e-11;
  double z = r * r;
  double s = r * (1 - z / 6 * (1 - z / 20 * (1 - z / 42 * (1 - z / 72 * (1 - z / 110)))));
  double c = 1 - z / 2 * (1 - z / 12 * (1 - z / 30 * (1 - z / 56 * (1 - z / 90 * (1 - z / 132)))));
  int quadrant = (int)q & 3;
  double sn = quadrant & 1 ? c : s, cs = quadrant & 1 ? s : c;
  *sine = (float)(quadrant & 2 ? -sn : sn);
  *cosine = (float)((quadrant + 1) & 2 ? -cs : cs);
}
