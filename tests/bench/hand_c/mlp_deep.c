/* The whole `mlp_deep` step: columns belong to threads in products, rows in the normalisations. */
#include <omp.h>
#include "gemm.h"
#include "vmath.h"
#define B 64
#define H 256
#define O 10
#define L 16
#define MAXT 2
#define BARRIER _Pragma("omp barrier")
typedef struct {
  float w[H * H], b[H], g[H], s[H];
} Layer;
typedef struct {
  Layer l[L];
  float w[H * O], b[O];
} Params;
static struct {
  float u[L][B * H], h[L][B * H], mean[L][B], rstd[L][B], z[B * O], d[B * H], e[B * H],
      part[MAXT][2][H];
  Params grad;
  float scratch[MAXT][GEMM_SCRATCH] __attribute__((aligned(64)));
} a __attribute__((aligned(64)));
int param_floats(void) { return sizeof(Params) / 4; }
float step(const float *x, const long *y, Params *p, float *m1) {
  double loss = 0;
#pragma omp parallel reduction(+ : loss)
  {
    int me = omp_get_thread_num(), nt = omp_get_num_threads(), lo = B / nt * me,
        hi = me + 1 == nt ? B : B / nt * (me + 1);
    int c0 = H / nt * me, c1 = me + 1 == nt ? H : H / nt * (me + 1);
    float *scr = a.scratch[me];
    for (int i = 0; i < L; i++) {
      const float *in = i ? a.h[i - 1] : x;
      Layer *w = &p->l[i];
      gemm(0, 0, B, c1 - c0, H, in, H, w->w + c0, H, a.u[i] + c0, H, 0, scr);
      BARRIER
      for (int r = lo; r < hi; r++) {
        float *restrict u = a.u[i] + r * H, *restrict h = a.h[i] + r * H, m = 0, v = 0;
        for (int c = 0; c < H; c++) {
          u[c] += w->b[c];
          m += u[c];
        }
        m /= H;
        for (int c = 0; c < H; c++) v += (u[c] - m) * (u[c] - m);
        float k = 1.0f / sqrtf(v / H + 1e-5f);
        a.mean[i][r] = m;
        a.rstd[i][r] = k;
        for (int c = 0; c < H; c++) {
          float t = (u[c] - m) * k * w->g[c] + w->s[c];
          h[c] = 0.5f * t * (1.0f + v_erf(t * 0.70710678f));
        }
      }
      BARRIER
    }
    gemm(0, 0, hi - lo, O, H, a.h[L - 1] + lo * H, H, p->w, O, a.z + lo * O, O, 0, scr);
    for (int r = lo; r < hi; r++) {
      float *q = a.z + r * O, top = -3e38f, sum = 0;
      for (int c = 0; c < O; c++) {
        q[c] += p->b[c];
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
    gemm(0, 1, hi - lo, H, O, a.z + lo * O, O, p->w, O, a.d + lo * H, H, 0, scr);
    BARRIER
    gemm(1, 0, c1 - c0, O, B, a.h[L - 1] + c0, H, a.z, O, a.grad.w + c0 * O, O, 0, scr);
    if (!me) {
      for (int c = 0; c < O; c++) a.grad.b[c] = 0;
      for (int r = 0; r < B; r++)
        for (int c = 0; c < O; c++) a.grad.b[c] += a.z[r * O + c];
    }
    for (int i = L - 1; i >= 0; i--) {
      Layer *w = &p->l[i], *gr = &a.grad.l[i];
      float *restrict pg = a.part[me][0], *restrict ps = a.part[me][1];
      for (int c = 0; c < H; c++) pg[c] = ps[c] = 0;
      for (int r = lo; r < hi; r++) {
        float *restrict u = a.u[i] + r * H, *restrict d = a.d + r * H, m = a.mean[i][r],
                        k = a.rstd[i][r], s1 = 0, s2 = 0;
        for (int c = 0; c < H; c++) {
          float n = (u[c] - m) * k, t = n * w->g[c] + w->s[c];
          float q = d[c] * (0.5f * (1.0f + v_erf(t * 0.70710678f)) +
                            t * 0.39894228f * v_exp(-0.5f * t * t));
          pg[c] += q * n;
          ps[c] += q;
          float e = q * w->g[c];
          d[c] = e;
          s1 += e;
          s2 += e * n;
        }
        s1 /= H;
        s2 /= H;
        for (int c = 0; c < H; c++) d[c] = k * (d[c] - s1 - (u[c] - m) * k * s2);
      }
      BARRIER
      gemm(1, 0, H, c1 - c0, B, i ? a.h[i - 1] : x, H, a.d + c0, H, gr->w + c0, H, 0, scr);
      for (int c = c0; c < c1; c++) {
        gr->b[c] = 0;
        gr->g[c] = gr->s[c] = 0;
        for (int t = 0; t < nt; t++) gr->g[c] += a.part[t][0][c], gr->s[c] += a.part[t][1][c];
      }
      for (int r = 0; r < B; r++)
        for (int c = c0; c < c1; c++) gr->b[c] += a.d[r * H + c];
      if (i) gemm(0, 1, B, c1 - c0, H, a.d, H, w->w + c0 * H, H, a.e + c0, H, 0, scr);
      BARRIER
      if (i)
        for (int j = lo * H; j < hi * H; j++) a.d[j] = a.e[j];
    }
    BARRIER
    long P = sizeof(Params) / 4, s = P / nt * me, e = me + 1 == nt ? P : P / nt * (me + 1);
    float *restrict pf = (float *)p, *restrict gf = (float *)&a.grad;
    for (long j = s; j < e; j++) {
      m1[j] = 0.9f * m1[j] + gf[j];
      pf[j] -= 0.01f * m1[j];
    }
  }
  return loss / B;
}
