/* float32 elementary functions written so that gcc -O3 vectorises them. The coefficients of exp are
   those of Cephes (Moshier), of the rational tanh and erf those of Eigen. Ranges are clamped; NaN
   is not kept. */
#ifndef VMATH_H
#define VMATH_H
#include <math.h>
static inline float v_exp(float x) {
  x = x < -87.3f ? -87.3f : x;
  x = x > 88.3f ? 88.3f : x;
  float n = rintf(x * 1.44269504088896341f);
  float r = fmaf(n, -0.693359375f, x);
  r = fmaf(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = fmaf(p, r, 1.3981999507e-3f);
  p = fmaf(p, r, 8.3334519073e-3f);
  p = fmaf(p, r, 4.1665795894e-2f);
  p = fmaf(p, r, 1.6666665459e-1f);
  p = fmaf(p, r, 5.0000001201e-1f);
  p = fmaf(p * r, r, r) + 1.0f;
  union {
    int i;
    float f;
  } u;
  u.i = ((int)n + 127) << 23;
  return p * u.f;
}
static inline float v_tanh(float x) {
  x = x < -7.90531110763549805f ? -7.90531110763549805f : x;
  x = x > 7.90531110763549805f ? 7.90531110763549805f : x;
  float q = x * x, a = -2.76076847742355e-16f, b = 1.19825839466702e-06f;
  a = fmaf(a, q, 2.00018790482477e-13f);
  a = fmaf(a, q, -8.60467152213735e-11f);
  a = fmaf(a, q, 5.12229709037114e-08f);
  a = fmaf(a, q, 1.48572235717979e-05f);
  a = fmaf(a, q, 6.37261928875436e-04f);
  a = fmaf(a, q, 4.89352455891786e-03f);
  b = fmaf(b, q, 1.18534705686654e-04f);
  b = fmaf(b, q, 2.26843463243900e-03f);
  b = fmaf(b, q, 4.89352518554385e-03f);
  return x * a / b;
}
static inline float v_erf(float x) {
  x = x < -4.0f ? -4.0f : x;
  x = x > 4.0f ? 4.0f : x;
  float q = x * x, a = -2.72614225801306e-10f, b = -1.45660718464996e-05f;
  a = fmaf(a, q, 2.77068142495902e-08f);
  a = fmaf(a, q, -2.10102402082508e-06f);
  a = fmaf(a, q, -5.69250639462346e-05f);
  a = fmaf(a, q, -7.34990630326855e-04f);
  a = fmaf(a, q, -2.95459980854025e-03f);
  a = fmaf(a, q, -1.60960333262415e-02f);
  b = fmaf(b, q, -2.13374055278905e-04f);
  b = fmaf(b, q, -1.68282697438203e-03f);
  b = fmaf(b, q, -7.37332916720468e-03f);
  b = fmaf(b, q, -1.42647390514189e-02f);
  return x * a / b;
}
static inline float v_sigmoid(float x) { return 1.0f / (1.0f + v_exp(-x)); }
#endif
