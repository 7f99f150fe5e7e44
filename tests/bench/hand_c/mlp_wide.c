/* The whole `mlp_wide` step: rows belong to threads going forward and back, columns for weight
 * gradients. */
#include <omp.h>
#include "gemm.h"
#include "vmath.h"
#define B 256
#define I 784
#define H 1024
#define O 10
#define MAXT 2
#define BARRIER _Pragma("omp barrier")
typedef struct {
  float w0[I * H], b0[H], w1[H * H], b1[H], w2[H * O], b2[O];
} Params;
static struct {
  float u0[B * H], h0[B * H], u1[B * H], h1[B * H], z[B * O], d1[B * H], d0[B * H];
  Params grad;
  float scratch[MAXT][GEMM_SCRATCH] __attribute__((aligned(64)));
} a __attribute__((aligned(64)));
int param_floats(void) { return sizeof(Params) / 4; }
static void gelu(int lo, int hi, float *restrict u, const float *restrict b, float *restrict h) {
  for (int r = lo; r < hi; r++)
    for (int c = 0; c < H; c++) {
      float x = u[r * H + c] + b[c];
      u[r * H + c] = x;
      h[r * H + c] = 0.5f * x * (1.0f + v_erf(x * 0.70710678f));
    }
}
static void gelu_back(int lo, int hi, const float *restrict u, float *restrict d) {
  for (int j = lo * H; j < hi * H; j++) {
    float x = u[j];
    d[j] *= 0.5f * (1.0f + v_erf(x * 0.70710678f)) + x * 0.39894228f * v_exp(-0.5f * x * x);
  }
}
static void weight_grad(int me, int nt, int k, int n, const float *x, const float *d, float *dw,
                        float *db, float *scr) {
  int chunk = UP((n + nt - 1) / nt, NR), lo = me * chunk, hi = lo + chunk > n ? n : lo + chunk;
  if (lo >= hi) return;
  gemm(1, 0, k, hi - lo, B, x, k, d + lo, n, dw + lo, n, 0, scr);
  for (int c = lo; c < hi; c++) db[c] = 0;
  for (int r = 0; r < B; r++)
    for (int c = lo; c < hi; c++) db[c] += d[r * n + c];
}
float step(const float *x, const long *y, Params *p, float *m1, float *m2, int count) {
  double loss = 0;
#pragma omp parallel reduction(+ : loss)
  {
    int me = omp_get_thread_num(), nt = omp_get_num_threads(), lo = B / nt * me,
        hi = me + 1 == nt ? B : B / nt * (me + 1);
    float *scr = a.scratch[me];
    gemm(0, 0, hi - lo, H, I, x + lo * I, I, p->w0, H, a.u0 + lo * H, H, 0, scr);
    gelu(lo, hi, a.u0, p->b0, a.h0);
    gemm(0, 0, hi - lo, H, H, a.h0 + lo * H, H, p->w1, H, a.u1 + lo * H, H, 0, scr);
    gelu(lo, hi, a.u1, p->b1, a.h1);
    gemm(0, 0, hi - lo, O, H, a.h1 + lo * H, H, p->w2, O, a.z + lo * O, O, 0, scr);
    for (int r = lo; r < hi; r++) {
      float *q = a.z + r * O, top = -3e38f, sum = 0;
      for (int c = 0; c < O; c++) {
        q[c] += p->b2[c];
        top = q[c] > top ? q[c] : top;
      }
      float own = q[y[r]] - top;
      for (int c = 0; c < O; c++) {
        q[c] = v_exp(q[c] - top);
        sum += q[c];
      }
      loss += logf(sum) - own;
      for (int c = 0; c < O; c++) q[c] /= B * sum;
      q[y[r]] -= 1.0f / B;
    }
    gemm(0, 1, hi - lo, H, O, a.z + lo * O, O, p->w2, O, a.d1 + lo * H, H, 0, scr);
    gelu_back(lo, hi, a.u1, a.d1);
    gemm(0, 1, hi - lo, H, H, a.d1 + lo * H, H, p->w1, H, a.d0 + lo * H, H, 0, scr);
    gelu_back(lo, hi, a.u0, a.d0);
    BARRIER
    weight_grad(me, nt, H, O, a.h1, a.z, a.grad.w2, a.grad.b2, scr);
    weight_grad(me, nt, H, H, a.h0, a.d1, a.grad.w1, a.grad.b1, scr);
    weight_grad(me, nt, I, H, x, a.d0, a.grad.w0, a.grad.b0, scr);
    BARRIER
    const float lr = 1e-3f, wd = 0.01f, b1 = 0.9f, b2 = 0.999f, eps = 1e-8f;
    float step = lr / (1.0f - powf(b1, count)), root = 1.0f / sqrtf(1.0f - powf(b2, count));
    long P = sizeof(Params) / 4, s = P / nt * me, e = me + 1 == nt ? P : P / nt * (me + 1);
    float *restrict pf = (float *)p, *restrict gf = (float *)&a.grad;
    for (long j = s; j < e; j++) {
      float g = gf[j], m = m1[j] = b1 * m1[j] + (1 - b1) * g,
            v = m2[j] = b2 * m2[j] + (1 - b2) * g * g;
      pf[j] = pf[j] * (1 - lr * wd) - step * m / (sqrtf(v) * root + eps);
    }
  }
  return loss / B;
}
