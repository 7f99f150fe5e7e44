/* A whole GPT training step: forward, backward and AdamW in one parallel region.
   Rows of tokens belong to threads; weight gradients are split by columns. */
#include <omp.h>
#include <string.h>
#include "gemm.h"
#include "vmath.h"
#ifndef BATCH
#define BATCH 8
#define T 128
#define D 256
#define NH 4
#endif
#define L 2
#define V 256
#define N (BATCH * T)
#define F (4 * D)
#define DH (D / NH)
#define RB 128
#define INV_SQRT2 0.70710678118654752f
#define INV_SQRT2PI 0.39894228040143268f
#define MAXT 2
#define ALIGN __attribute__((aligned(64)))

/* parameters, in the order of the flat arenas */
typedef struct {
  float ln1g[D], ln1b[D], qkvw[D * 3 * D], qkvb[3 * D], outw[D * D], outb[D], ln2g[D], ln2b[D],
      upw[D * F], upb[F], downw[F * D], downb[D];
} Layer;
typedef struct {
  float tok[V * D], pos[T * D];
  Layer layer[L];
  float lnfg[D], lnfb[D], headw[D * V], headb[V];
} Params;
typedef struct {
  float mean[N], rstd[N];
} Norm;
typedef struct {
  float in[N * D], a1[N * D], qkv[N * 3 * D], att[N * D], lse[NH * N], mid[N * D], a2[N * D],
      u[N * F], g[N * F];
  Norm n1, n2;
} Saved;

static struct {
  Saved s[L];
  float last[N * D], af[N * D], logits[N * V];
  Norm nf;
  float dh[N * D], da[N * D], dqkv[N * 3 * D], du[N * F];
  float part[MAXT][2][2 * L + 1][D];
  float scratch[MAXT][GEMM_SCRATCH] ALIGN, S[MAXT][RB * T] ALIGN, dS[MAXT][RB * T] ALIGN, zero[D];
  Params grad;
} arena ALIGN;
int param_floats(void) { return sizeof(Params) / 4; }
long arena_bytes(void) { return sizeof arena; }

#define ME                                                                                         \
  int me = omp_get_thread_num(), nt = omp_get_num_threads();                                       \
  float *scr = arena.scratch[me];                                                                  \
  (void)scr;
#define BARRIER _Pragma("omp barrier")

/* y[lo:hi] = x[lo:hi] w + b for a thread's rows */
static void linear(int lo, int hi, int k, int n, const float *x, const float *w, const float *b,
                   float *y, float *scr) {
  gemm(0, 0, hi - lo, n, k, x + (long)lo * k, k, w, n, y + (long)lo * n, n, 0, scr);
  for (int r = lo; r < hi; r++) {
    float *restrict o = y + (long)r * n;
    for (int c = 0; c < n; c++) o[c] += b[c];
  }
}
static void linear_residual(int lo, int hi, int k, int n, const float *x, const float *w,
                            const float *b, const float *res, float *y, float *scr) {
  for (int r = lo; r < hi; r++) {
    float *restrict o = y + (long)r * n;
    const float *q = res + (long)r * n;
    for (int c = 0; c < n; c++) o[c] = q[c] + b[c];
  }
  gemm(0, 0, hi - lo, n, k, x + (long)lo * k, k, w, n, y + (long)lo * n, n, 1, scr);
}
/* a thread's columns of dw = x' dy and db = sum dy, over all rows */
static void linear_grad(int me, int nt, int k, int n, const float *x, const float *dy, float *dw,
                        float *db, float *scr) {
  int chunk = UP((n + nt - 1) / nt, NR), lo = me * chunk, hi = lo + chunk > n ? n : lo + chunk;
  if (lo >= hi) return;
  gemm(1, 0, k, hi - lo, N, x, k, dy + lo, n, dw + lo, n, 0, scr);
  for (int c = lo; c < hi; c++) db[c] = 0;
  for (int r = 0; r < N; r++) {
    const float *q = dy + (long)r * n;
    for (int c = lo; c < hi; c++) db[c] += q[c];
  }
}
static void linear_back(int lo, int hi, int k, int n, const float *dy, const float *w, float *dx,
                        float *scr) {
  gemm(0, 1, hi - lo, k, n, dy + (long)lo * n, n, w, n, dx + (long)lo * k, k, 0, scr);
}
static void norm(int lo, int hi, const float *x, const float *g, const float *b, Norm *s,
                 float *y) {
  for (int r = lo; r < hi; r++) {
    const float *restrict q = x + (long)r * D;
    float *restrict o = y + (long)r * D, m = 0, v = 0;
    for (int c = 0; c < D; c++) m += q[c];
    m /= D;
    for (int c = 0; c < D; c++) v += (q[c] - m) * (q[c] - m);
    float k = 1.0f / sqrtf(v / D + 1e-5f);
    s->mean[r] = m;
    s->rstd[r] = k;
    for (int c = 0; c < D; c++) o[c] = (q[c] - m) * k * g[c] + b[c];
  }
}
/* dx (+)= gradient through the norm; partial sums of dg and db */
static void norm_back(int lo, int hi, const float *x, const float *g, const Norm *s,
                      const float *dy, float *dx, int add, float *restrict dg, float *restrict db) {
  for (int c = 0; c < D; c++) dg[c] = db[c] = 0;
  for (int r = lo; r < hi; r++) {
    const float *restrict q = x + (long)r * D, *restrict d = dy + (long)r * D;
    float *restrict o = dx + (long)r * D;
    float m = s->mean[r], k = s->rstd[r], s1 = 0, s2 = 0;
    for (int c = 0; c < D; c++) {
      float h = (q[c] - m) * k, e = d[c] * g[c];
      s1 += e;
      s2 += e * h;
      dg[c] += d[c] * h;
      db[c] += d[c];
    }
    s1 /= D;
    s2 /= D;
    if (add)
      for (int c = 0; c < D; c++) o[c] += k * (d[c] * g[c] - s1 - (q[c] - m) * k * s2);
    else
      for (int c = 0; c < D; c++) o[c] = k * (d[c] * g[c] - s1 - (q[c] - m) * k * s2);
  }
}
static void attention(int me, int nt, Saved *s, float *scr) {
  const float scale = 1.0f / sqrtf(DH);
  float *S = arena.S[me];
  for (int bh = me; bh < BATCH * NH; bh += nt) {
    const float *q = s->qkv + (long)(bh / NH) * T * 3 * D + bh % NH * DH, *k = q + D,
                *v = q + 2 * D;
    float *o = s->att + (long)(bh / NH) * T * D + bh % NH * DH;
    for (int r0 = 0; r0 < T; r0 += RB) {
      int w = r0 + RB;
      gemm(0, 1, RB, w, DH, q + (long)r0 * 3 * D, 3 * D, k, 3 * D, S, w, 0, scr);
      for (int r = 0; r < RB; r++) {
        float *restrict p = S + (long)r * w, top = -3e38f, sum = 0;
        int e = r0 + r + 1;
        for (int c = 0; c < e; c++) top = p[c] > top ? p[c] : top;
        for (int c = 0; c < e; c++) {
          p[c] = v_exp((p[c] - top) * scale);
          sum += p[c];
        }
        float inv = 1.0f / sum;
        for (int c = 0; c < e; c++) p[c] *= inv;
        for (int c = e; c < w; c++) p[c] = 0;
        s->lse[(long)bh * T + r0 + r] = top * scale + logf(sum);
      }
      gemm(0, 0, RB, DH, w, S, w, v, 3 * D, o + (long)r0 * D, D, 0, scr);
    }
  }
}
static void attention_back(int me, int nt, Saved *s, const float *datt, float *dqkv, float *scr) {
  const float scale = 1.0f / sqrtf(DH);
  float *S = arena.S[me], *dS = arena.dS[me];
  for (int bh = me; bh < BATCH * NH; bh += nt) {
    long off = (long)(bh / NH) * T * 3 * D + bh % NH * DH,
         off2 = (long)(bh / NH) * T * D + bh % NH * DH;
    const float *q = s->qkv + off, *k = q + D, *v = q + 2 * D, *o = s->att + off2, *d = datt + off2;
    float *dq = dqkv + off, *dk = dq + D, *dv = dq + 2 * D;
    for (int r = 0; r < T; r++)
      memset(dk + (long)r * 3 * D, 0, DH * 4), memset(dv + (long)r * 3 * D, 0, DH * 4);
    for (int r0 = 0; r0 < T; r0 += RB) {
      int w = r0 + RB;
      const float *qr = q + (long)r0 * 3 * D, *dr = d + (long)r0 * D, *orow = o + (long)r0 * D;
      gemm(0, 1, RB, w, DH, qr, 3 * D, k, 3 * D, S, w, 0, scr);
      gemm(0, 1, RB, w, DH, dr, D, v, 3 * D, dS, w, 0, scr);
      for (int r = 0; r < RB; r++) {
        float *restrict p = S + (long)r * w, *restrict e = dS + (long)r * w, delta = 0,
                        lse = s->lse[(long)bh * T + r0 + r];
        int n = r0 + r + 1;
        for (int c = 0; c < DH; c++) delta += orow[(long)r * D + c] * dr[(long)r * D + c];
        for (int c = 0; c < n; c++) {
          p[c] = v_exp(p[c] * scale - lse);
          e[c] = p[c] * (e[c] - delta) * scale;
        }
        for (int c = n; c < w; c++) p[c] = e[c] = 0;
      }
      gemm(0, 0, RB, DH, w, dS, w, k, 3 * D, dq + (long)r0 * 3 * D, 3 * D, 0, scr);
      gemm(1, 0, w, DH, RB, dS, w, qr, 3 * D, dk, 3 * D, 1, scr);
      gemm(1, 0, w, DH, RB, S, w, dr, D, dv, 3 * D, 1, scr);
    }
  }
}

float step(const long *ids, const long *y, Params *p, float *m1, float *m2, int count) {
  double loss = 0;
  Params *gr = &arena.grad;
#pragma omp parallel reduction(+ : loss)
  {
    ME int lo = N / nt * me, hi = me + 1 == nt ? N : N / nt * (me + 1);
    for (int r = lo; r < hi; r++)
      for (int c = 0; c < D; c++)
        arena.s[0].in[(long)r * D + c] = p->tok[ids[r] * D + c] + p->pos[r % T * D + c];
    for (int i = 0; i < L; i++) {
      Saved *s = &arena.s[i];
      Layer *w = &p->layer[i];
      float *out = i + 1 < L ? arena.s[i + 1].in : arena.last;
      norm(lo, hi, s->in, w->ln1g, w->ln1b, &s->n1, s->a1);
      linear(lo, hi, D, 3 * D, s->a1, w->qkvw, w->qkvb, s->qkv, scr);
      BARRIER
      attention(me, nt, s, scr);
      BARRIER
      linear_residual(lo, hi, D, D, s->att, w->outw, w->outb, s->in, s->mid, scr);
      norm(lo, hi, s->mid, w->ln2g, w->ln2b, &s->n2, s->a2);
      gemm(0, 0, hi - lo, F, D, s->a2 + (long)lo * D, D, w->upw, F, s->u + (long)lo * F, F, 0, scr);
      for (int r = lo; r < hi; r++) {
        float *restrict u = s->u + (long)r * F, *restrict g = s->g + (long)r * F;
        for (int c = 0; c < F; c++) {
          float x = u[c] + w->upb[c];
          u[c] = x;
          g[c] = 0.5f * x * (1.0f + v_erf(x * INV_SQRT2));
        }
      }
      linear_residual(lo, hi, F, D, s->g, w->downw, w->downb, s->mid, out, scr);
    }
    norm(lo, hi, arena.last, p->lnfg, p->lnfb, &arena.nf, arena.af);
    linear(lo, hi, D, V, arena.af, p->headw, p->headb, arena.logits, scr);
    for (int r = lo; r < hi; r++) {
      float *restrict q = arena.logits + (long)r * V, top = -3e38f, sum = 0;
      for (int c = 0; c < V; c++) top = q[c] > top ? q[c] : top;
      float own = q[y[r]] - top;
      for (int c = 0; c < V; c++) {
        q[c] = v_exp(q[c] - top);
        sum += q[c];
      }
      loss += logf(sum) - own;
      float k = 1.0f / (sum * N);
      for (int c = 0; c < V; c++) q[c] *= k;
      q[y[r]] -= 1.0f / N;
    }
    BARRIER
    linear_grad(me, nt, D, V, arena.af, arena.logits, gr->headw, gr->headb, scr);
    linear_back(lo, hi, D, V, arena.logits, p->headw, arena.da, scr);
    norm_back(lo, hi, arena.last, p->lnfg, &arena.nf, arena.da, arena.dh, 0,
              arena.part[me][0][2 * L], arena.part[me][1][2 * L]);
    for (int i = L - 1; i >= 0; i--) {
      Saved *s = &arena.s[i];
      Layer *w = &p->layer[i], *g = &gr->layer[i];
      linear_back(lo, hi, F, D, arena.dh, w->downw, arena.du, scr);
      for (long c = (long)lo * F; c < (long)hi * F; c++) {
        float x = s->u[c], cdf = 0.5f * (1.0f + v_erf(x * INV_SQRT2));
        arena.du[c] *= cdf + x * INV_SQRT2PI * v_exp(-0.5f * x * x);
      }
      BARRIER
      linear_grad(me, nt, F, D, s->g, arena.dh, g->downw, g->downb, scr);
      linear_grad(me, nt, D, F, s->a2, arena.du, g->upw, g->upb, scr);
      linear_back(lo, hi, D, F, arena.du, w->upw, arena.da, scr);
      BARRIER
      norm_back(lo, hi, s->mid, w->ln2g, &s->n2, arena.da, arena.dh, 1,
                arena.part[me][0][2 * i + 1], arena.part[me][1][2 * i + 1]);
      linear_back(lo, hi, D, D, arena.dh, w->outw, arena.da, scr);
      BARRIER
      linear_grad(me, nt, D, D, s->att, arena.dh, g->outw, g->outb, scr);
      attention_back(me, nt, s, arena.da, arena.dqkv, scr);
      BARRIER
      linear_grad(me, nt, D, 3 * D, s->a1, arena.dqkv, g->qkvw, g->qkvb, scr);
      linear_back(lo, hi, D, 3 * D, arena.dqkv, w->qkvw, arena.da, scr);
      norm_back(lo, hi, s->in, w->ln1g, &s->n1, arena.da, arena.dh, 1, arena.part[me][0][2 * i],
                arena.part[me][1][2 * i]);
    }
    BARRIER
    /* embeddings: a thread's columns; norms: sum the partials */
    int c0 = D / nt * me, c1 = me + 1 == nt ? D : D / nt * (me + 1);
    for (int r = 0; r < V; r++) memset(gr->tok + r * D + c0, 0, (c1 - c0) * 4);
    for (int r = 0; r < T; r++) memset(gr->pos + r * D + c0, 0, (c1 - c0) * 4);
    for (int r = 0; r < N; r++)
      for (int c = c0; c < c1; c++) {
        float d = arena.dh[(long)r * D + c];
        gr->tok[ids[r] * D + c] += d;
        gr->pos[r % T * D + c] += d;
      }
    for (int j = 0; j < 2 * L + 1; j++) {
      float *g = j == 2 * L ? gr->lnfg : j % 2 ? gr->layer[j / 2].ln2g : gr->layer[j / 2].ln1g;
      float *b = j == 2 * L ? gr->lnfb : j % 2 ? gr->layer[j / 2].ln2b : gr->layer[j / 2].ln1b;
      for (int c = c0; c < c1; c++) {
        g[c] = b[c] = 0;
        for (int t = 0; t < nt; t++) g[c] += arena.part[t][0][j][c], b[c] += arena.part[t][1][j][c];
      }
    }
    BARRIER
    const float lr = 1e-3f, wd = 0.01f, b1 = 0.9f, b2 = 0.999f, eps = 1e-8f;
    float step = lr / (1.0f - powf(b1, count)), root = 1.0f / sqrtf(1.0f - powf(b2, count));
    long P = sizeof(Params) / 4, a = P / nt * me, z = me + 1 == nt ? P : P / nt * (me + 1);
    float *restrict pf = (float *)p, *restrict gf = (float *)gr;
    for (long j = a; j < z; j++) {
      float g = gf[j], m = m1[j] = b1 * m1[j] + (1 - b1) * g,
            v = m2[j] = b2 * m2[j] + (1 - b2) * g * g;
      pf[j] = pf[j] * (1 - lr * wd) - step * m / (sqrtf(v) * root + eps);
    }
  }
  return loss / N;
}
