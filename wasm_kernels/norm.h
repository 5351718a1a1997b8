// RMS normalization, as NORM and HEADS share it.
#pragma once
#include "vec.h"

// 1 / sqrt(mean(x^2) + eps) of n values.
static inline float inverse_rms(const float *x, uint32_t n, float eps) {
  v128_t sum[4] = {splat(0), splat(0), splat(0), splat(0)};
  uint32_t i = 0;
  for (; i + 16 <= n; i += 16) {
    UNROLL for (uint32_t k = 0; k < 4; k++) {
      v128_t v = load(x + i + 4 * k);
      sum[k] = madd(v, v, sum[k]);
    }
  }
  for (; i < n; i += 4) {
    v128_t v = load_first(x + i, n - i);
    sum[0] = madd(v, v, sum[0]);
  }
  float total = sum_lanes(add(add(sum[0], sum[1]), add(sum[2], sum[3])));
  return 1.0f / __builtin_sqrtf(total / (float)n + eps);
}
