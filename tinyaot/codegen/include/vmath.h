/* Scalar functions for kernels, named by dtype, written so that a compiler vectorises them.

   float32: exp, expm1, log, log1p, tanh, erf, sin, cos within 4 ulp; NaN, infinities and signed
   zeros as IEEE 754 says. Polynomials after Cephes (Moshier); fused multiply-add where written.
   float64: libm. */
#ifndef TINYAOT_VMATH_H
#define TINYAOT_VMATH_H
#ifdef __CUDACC_RTC__ /* NVIDIA's run-time compiler brings the functions, but no headers */
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef int int32_t;
typedef unsigned uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define INT32_MIN (-2147483647 - 1)
#define INT64_MIN (-9223372036854775807LL - 1)
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#else
#include <math.h>
#include <stdint.h>
#include <string.h>
#endif
#ifdef __CUDACC__
#pragma nv_diag_suppress 186 /* x < 0 of an unsigned x */
#define INLINE static __device__ __forceinline__
#define BOUND static constexpr float
#define UNROLL _Pragma("unroll")
#else
#define INLINE static inline
#define BOUND __attribute__((weak, visibility("hidden"))) float /* its value unknown to gcc */
#define UNROLL _Pragma("GCC unroll 16")
#endif

INLINE float from_bits(int32_t i) { float f; memcpy(&f, &i, 4); return f; }
INLINE int32_t to_bits(float f) { int32_t i; memcpy(&i, &f, 4); return i; }

/* What arguments are clamped to. gcc has an instruction for `x < low ? low : x`, but sees it only
   where both `low` are one variable, and not two copies of a constant. */
BOUND EXP_LEAST = -104.0f, EXP_MOST = 89.0f, TANH_MOST = 10.0f, ERF_MOST = 4.0f;
BOUND SIGMOID_LEAST = -88.7228f, SIGMOID_MOST = 87.0f, EXPM1_LEAST = -20.0f;

/* exp(x) = 2^n (1 + p) for x = n log 2 + r: returns p, and n + bias in *shifted. A bias of
   1.5 * 2^23 + b rounds n to an integer, and leaves n + b in the low bits of *shifted. Estrin's
   scheme: half as deep as Horner's, and a loop waits for the depth. */
#define ROUND 12582912.0f
INLINE float exp_part(float x, float bias, float *shifted) {
  *shifted = fmaf(x, 1.44269504088896341f, bias);
  float n = *shifted - bias, r = fmaf(n, -0.693145751953125f, x);
  r = fmaf(n, -1.42860682030941723212e-6f, r);
  float s = r * r;
  float low = fmaf(0.166665196f, r, 0.49999994f), high = fmaf(8.36879667e-3f, r, 4.16683964e-2f);
  return fmaf(fmaf(fmaf(1.38144335e-3f, s, high), s, low), s, r);
}

/* The bits of 2^n, from n + 127 in the low bits of a float. */
INLINE float power_of_2(float shifted, int32_t up) {
  return from_bits((int32_t)((uint32_t)to_bits(shifted) << 23) + up);
}

/* 2^n in two factors, 2^(n - 1) and 2, since 2^128 is too large; where 2^n may be subnormal,
   2^(n + 63) and 2^-63. */
INLINE float exp_f32(float x) {
  x = x < EXP_LEAST ? EXP_LEAST : x;
  x = x > EXP_MOST ? EXP_MOST : x;
  float shifted, p = exp_part(x, ROUND + 126.0f, &shifted);
  int32_t up = x < -86.0f ? 64 << 23 : 0;
  float t = power_of_2(shifted, up);
  return fmaf(t, p, t) * from_bits((128 << 23) - up);
}

/* 2 (2^(n - 1) (1 + p) - 1/2): p alone where n is 0. From -20 down it rounds to -1. */
INLINE float expm1_f32(float x) {
  float c = x < EXPM1_LEAST ? EXPM1_LEAST : x;
  c = c > EXP_MOST ? EXP_MOST : c;
  float shifted, p = exp_part(c, ROUND + 126.0f, &shifted), t = power_of_2(shifted, 0);
  float y = 2.0f * fmaf(t, p, t - 0.5f);
  return x == 0.0f ? x : y;
}

/* 1 - exp(x) for -87 < x <= 0, without cancellation. */
INLINE float one_minus_exp(float x) {
  float shifted, p = exp_part(x, ROUND + 127.0f, &shifted), t = power_of_2(shifted, 0);
  return fmaf(-t, p, 1.0f - t);
}

/* y >= 0 with the sign of x. */
INLINE float signed_as(float y, float x) {
  return from_bits(to_bits(y) | (to_bits(x) & INT32_MIN));
}

INLINE float log_f32(float x) {
  int tiny = x < 1.17549435e-38f;
  float y = tiny ? x * 8388608.0f : x;
  int32_t i = to_bits(y) - 0x3f3504f3; /* sqrt(1/2) */
  int32_t e = i >> 23;
  float m = from_bits((i & 0x7fffff) + 0x3f3504f3) - 1.0f;
  float n = (float)(e - (tiny ? 23 : 0)), q = m * m;
  float p = 7.0376836292e-2f;
  p = fmaf(p, m, -1.1514610310e-1f);
  p = fmaf(p, m, 1.1676998740e-1f);
  p = fmaf(p, m, -1.2420140846e-1f);
  p = fmaf(p, m, 1.4249322787e-1f);
  p = fmaf(p, m, -1.6668057665e-1f);
  p = fmaf(p, m, 2.0000714765e-1f);
  p = fmaf(p, m, -2.4999993993e-1f);
  p = fmaf(p, m, 3.3333331174e-1f);
  p = p * m * q;
  p = fmaf(n, -2.12194440e-4f, p);
  p = fmaf(-0.5f, q, p);
  float r = fmaf(n, 0.693359375f, m + p);
  r = x > 3.4028234e38f ? x : r;  /* infinity */
  r = x == 0.0f ? -INFINITY : r;
  r = x < 0.0f ? NAN : r;
  return x != x ? x : r;
}

/* log(u) for u = 1 + x as it rounds, and for what is lost there the slope of log at u. */
INLINE float log1p_f32(float x) {
  float u = 1.0f + x, lost = x < 1.0f ? x - (u - 1.0f) : 1.0f - (u - x);
  float y = log_f32(u) + lost / u;
  return u > 3.4028234e38f || u <= 0.0f ? log_f32(u) : x == 0.0f ? x : y;
}

/* With e = 1 - exp(-2|x|): e / (2 - e). From 10 on it rounds to 1. */
INLINE float tanh_f32(float x) {
  float a = fabsf(x);
  a = a > TANH_MOST ? TANH_MOST : a;
  float e = one_minus_exp(-2.0f * a);
  return signed_as(e / (2.0f - e), x);
}

/* 1 - exp(log(erfc(|x|))), with |x| times a minimax polynomial for the logarithm. From 4 on it
   rounds to 1. */
INLINE float erf_f32(float x) {
  float a = fabsf(x);
  a = a > ERF_MOST ? ERF_MOST : a;
  float s = a * a, t = s * s;
  float p = fmaf(-6.36619389e-1f, a, -1.12837923f);
  float q = fmaf(1.91530641e-2f, a, -1.02777831e-1f);
  float u = fmaf(-1.66702888e-3f, a, 1.6039738e-4f);
  float v = fmaf(-1.17641459e-4f, a, 6.32837589e-4f);
  v = fmaf(9.25628319e-6f, s, v);
  p = fmaf(fmaf(v, s, u), t, fmaf(q, s, p));
  return signed_as(one_minus_exp(p * a), x);
}

/* 1 / (1 + exp(-x)), without the care that exp takes for subnormal results. */
INLINE float sigmoid_f32(float x) {
  float c = x > SIGMOID_MOST ? SIGMOID_MOST : x;
  c = c < SIGMOID_LEAST ? SIGMOID_LEAST : c;
  float shifted, p = exp_part(-c, ROUND + 126.0f, &shifted), t = power_of_2(shifted, 0);
  return x < SIGMOID_LEAST ? 0.0f : 1.0f / fmaf(2.0f, fmaf(t, p, t), 1.0f);
}

/* sin and cos: x = n pi/2 + r in double, exact enough up to |x| = 2^30; libm beyond. The quadrant n
   picks the polynomial and the sign. */
INLINE float sin_quadrant(float x, int32_t shift) {
  double n = rint((double)x * 0.63661977236758134308);
  double r = fma(n, -1.57079632679489655800, (double)x);
  float y = (float)fma(n, -6.12323399573676603587e-17, r), q = y * y;
  int32_t k = (int32_t)n + shift;
  float s = -1.9515295891e-4f, c = 2.443315711809948e-5f;
  s = fmaf(s, q, 8.3321608736e-3f);
  s = fmaf(s, q, -1.6666654611e-1f);
  s = fmaf(s * q, y, y);
  c = fmaf(c, q, -1.388731625493765e-3f);
  c = fmaf(c, q, 4.166664568298827e-2f);
  c = fmaf(c * q, q, fmaf(-0.5f, q, 1.0f));
  float z = k & 1 ? c : s;
  return k & 2 ? -z : z;
}
INLINE float sin_f32(float x) {
  float y = x == 0.0f ? x : sin_quadrant(x, 0);
  return fabsf(x) < 1073741824.0f ? y : sinf(x);
}
INLINE float cos_f32(float x) {
  return fabsf(x) < 1073741824.0f ? sin_quadrant(x, 1) : cosf(x);
}

#define LIBM1(name)                                                                                \
  INLINE double name##_f64(double x) { return name(x); }
LIBM1(exp) LIBM1(expm1) LIBM1(log) LIBM1(log1p) LIBM1(tanh) LIBM1(erf) LIBM1(sin) LIBM1(cos)
INLINE double sigmoid_f64(double x) { return 1.0 / (1.0 + exp(-x)); }

#define FLOATS(T, S, s)                                                                            \
  INLINE T sqrt_##S(T x) { return sqrt##s(x); }                                                    \
  INLINE T rsqrt_##S(T x) { return 1 / sqrt##s(x); }                                               \
  INLINE T tan_##S(T x) { return tan##s(x); }                                                      \
  INLINE T floor_##S(T x) { return floor##s(x); }                                                  \
  INLINE T ceil_##S(T x) { return ceil##s(x); }                                                    \
  INLINE T rint_##S(T x) { return rint##s(x); }                                                    \
  INLINE T abs_##S(T x) { return fabs##s(x); }                                                     \
  INLINE T atan2_##S(T y, T x) { return atan2##s(y, x); }                                          \
  INLINE T pow_##S(T x, T y) { return pow##s(x, y); }                                              \
  INLINE int isnan_##S(T x) { return x != x; }                                                     \
  INLINE int isfinite_##S(T x) { return x - x == 0; }                                              \
  INLINE T relu_##S(T x) { return x < 0 ? 0 : x; }                                                 \
  INLINE T sign_##S(T x) { return x > 0 ? 1 : x < 0 ? -1 : x; }                                    \
  INLINE T maximum_##S(T x, T y) { return x > y || x != x ? x : y; }                               \
  INLINE T minimum_##S(T x, T y) { return x < y || x != x ? x : y; }                               \
  /* as Python: the remainder has the divisor's sign */                                            \
  INLINE T remainder_##S(T x, T y) {                                                               \
    T r = fmod##s(x, y);                                                                           \
    return r == 0 ? copysign##s((T)0, y) : (r < 0) != (y < 0) ? r + y : r;                         \
  }                                                                                                \
  INLINE T floordiv_##S(T x, T y) {                                                                \
    if (y == 0) return x / y;                                                                      \
    T r = fmod##s(x, y), q = (x - r) / y;                                                          \
    if (r != 0 && (r < 0) != (y < 0)) q -= 1;                                                      \
    if (q == 0) return copysign##s((T)0, x / y);                                                   \
    T whole = floor##s(q);                                                                         \
    return q - whole > (T)0.5 ? whole + 1 : whole;                                                 \
  }
FLOATS(float, f32, f)
FLOATS(double, f64, )

#define INTS(T, S)                                                                                 \
  INLINE T relu_##S(T x) { return x < 0 ? 0 : x; }                                                 \
  INLINE T sign_##S(T x) { return (x > 0) - (x < 0); }                                             \
  INLINE T abs_##S(T x) { return x < 0 ? -x : x; }                                                 \
  INLINE T maximum_##S(T x, T y) { return x > y ? x : y; }                                         \
  INLINE T minimum_##S(T x, T y) { return x < y ? x : y; }                                         \
  /* as NumPy: rounded down, 0 when divided by 0 */                                                \
  INLINE T floordiv_##S(T x, T y) {                                                                \
    if (y == 0) return 0;                                                                          \
    if ((T)-1 < 0 && y == (T)-1) return -x;                                                        \
    T q = x / y;                                                                                   \
    return q * y != x && (x < 0) != (y < 0) ? q - 1 : q;                                           \
  }                                                                                                \
  INLINE T remainder_##S(T x, T y) {                                                               \
    if (y == 0 || ((T)-1 < 0 && y == (T)-1)) return 0;                                             \
    T r = x % y;                                                                                   \
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;                                               \
  }                                                                                                \
  /* to a negative power 1 over the power, cut to an integer */                                    \
  INLINE T pow_##S(T x, T y) {                                                                     \
    if ((T)-1 < 0 && y < 0) return x == 1 || x == (T)-1 ? (y & 1 ? x : 1) : 0;                     \
    T r = 1;                                                                                       \
    for (; y > 0; y >>= 1, x *= x)                                                                 \
      if (y & 1) r *= x;                                                                           \
    return r;                                                                                      \
  }
INTS(int8_t, i8) INTS(uint8_t, u8) INTS(int16_t, i16) INTS(int32_t, i32) INTS(uint32_t, u32)
INTS(int64_t, i64)
INLINE int maximum_bool(int x, int y) { return x | y; }
INLINE int minimum_bool(int x, int y) { return x & y; }

/* A report of an index out of range is never 0: one from 0 on is reported as one more. */
INLINE int64_t report_of(int64_t i) { return i < 0 ? i : i + 1; }
INLINE int64_t not_within(int64_t i, int64_t n, int64_t ignored) {
  return (i < 0 || i >= n) && i != ignored ? report_of(i) : 0;
}
/* An index that data gives: from the end when negative; out of range is reported, and read as 0. */
INLINE int64_t checked_index(int64_t i, int64_t n, int64_t *error) {
  const int64_t at = i + (i < 0 ? n : 0);
  if (at >= 0 && at < n) return at;
  *error = report_of(i);
  return 0;
}
INLINE int any_error(const int64_t *error, int from, int to) {
  while (from < to && !error[from]) from++;
  return from < to;
}

/* Philox4x32-10 (Salmon et al., 2011): word element % 4 of the block at (element / 4, draw). */
INLINE uint32_t random_bits(uint64_t seed, uint64_t draw, uint64_t element) {
  uint32_t c0 = (uint32_t)(element >> 2), c1 = (uint32_t)(element >> 34);
  uint32_t c2 = (uint32_t)draw, c3 = (uint32_t)(draw >> 32);
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  UNROLL
  for (int r = 0; r < 10; r++) {
    uint64_t p = (uint64_t)0xD2511F53u * c0, q = (uint64_t)0xCD9E8D57u * c2;
    c0 = (uint32_t)(q >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)q;
    c2 = (uint32_t)(p >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)p;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  uint32_t lane = (uint32_t)element & 3;
  return lane < 2 ? (lane ? c1 : c0) : (lane == 2 ? c2 : c3);
}
#endif
