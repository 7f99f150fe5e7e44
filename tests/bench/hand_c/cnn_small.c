/* The whole `cnn_small` step: channels last inside, direct convolutions, samples split among
 * threads. */
#include <omp.h>
#include <string.h>
#include "vmath.h"
#define B 64
#define S 28
#define C1 16
#define C2 32
#define H1 14
#define H2 7
#define FLAT (C2 * H2 * H2)
#define O 10
#define MAXT 2
typedef float v16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef float v16a __attribute__((vector_size(64), aligned(64), may_alias));
typedef int i16 __attribute__((vector_size(64)));
typedef struct {
  float k1[9][C1], b1[C1], k2[9][C1][C2], b2[C2], w[FLAT * O], b[16];
} Grad;
static struct {
  float k1[9][C1], k2[9][C1][C2], k2t[9][C2][C1], wt[O][FLAT];
  struct {
    float x[30][32], a1[S][S][C1], p1[16][16][C1], a2[H1][H1][C2], p2[FLAT], dp2[FLAT],
        d2[16][16][C2], dp1[H1][H1][C1];
    Grad g;
  } t[MAXT];
} a __attribute__((aligned(64)));
#define MAXV(x, y) ((x) > (y) ? (x) : (y))

float step(const float *x, const long *y, float *k1, float *b1, float *k2, float *b2, float *w,
           float *b) {
  const float lr = 0.05f;
  double loss = 0;
  int used = 1;
  for (int c = 0; c < C1; c++)
    for (int q = 0; q < 9; q++) a.k1[q][c] = k1[c * 9 + q];
  for (int o = 0; o < C2; o++)
    for (int c = 0; c < C1; c++)
      for (int q = 0; q < 9; q++) a.k2[q][c][o] = a.k2t[q][o][c] = k2[(o * C1 + c) * 9 + q];
  for (int f = 0; f < FLAT; f++)
    for (int o = 0; o < O; o++) a.wt[o][f] = w[f * O + o];
#pragma omp parallel reduction(+ : loss)
  {
    int me = omp_get_thread_num();
    __typeof__(&a.t[0]) s = &a.t[me];
    Grad *g = &s->g;
    memset(g, 0, sizeof *g);
#pragma omp single
    used = omp_get_num_threads();
#pragma omp for schedule(static)
    for (int n = 0; n < B; n++) {
      for (int i = 0; i < S; i++) memcpy(&s->x[i + 1][1], x + (n * S + i) * S, S * 4);
      for (int i = 0; i < S; i++)
        for (int j = 0; j < S; j++) {
          v16 acc = *(v16 *)b1;
#pragma GCC unroll 9
          for (int q = 0; q < 9; q++) acc += s->x[i + q / 3][j + q % 3] * *(v16 *)a.k1[q];
          *(v16a *)s->a1[i][j] = acc;
        }
      for (int i = 0; i < H1; i++)
        for (int j = 0; j < H1; j++)
          for (int c = 0; c < C1; c++) {
            float m = MAXV(MAXV(s->a1[2 * i][2 * j][c], s->a1[2 * i][2 * j + 1][c]),
                           MAXV(s->a1[2 * i + 1][2 * j][c], s->a1[2 * i + 1][2 * j + 1][c]));
            s->p1[i + 1][j + 1][c] = MAXV(m, 0.0f);
          }
      for (int i = 0; i < H1; i++) {
        v16a acc[H1][2];
#pragma GCC unroll 14
        for (int j = 0; j < H1; j++) acc[j][0] = *(v16 *)b2, acc[j][1] = *(v16 *)(b2 + 16);
        for (int q = 0; q < 9; q++)
          for (int c = 0; c < C1; c++) {
            v16a k0 = *(v16a *)a.k2[q][c], kk = *(v16a *)(a.k2[q][c] + 16);
            const float *in = &s->p1[i + q / 3][q % 3][c];
#pragma GCC unroll 14
            for (int j = 0; j < H1; j++) acc[j][0] += in[j * C1] * k0, acc[j][1] += in[j * C1] * kk;
          }
#pragma GCC unroll 14
        for (int j = 0; j < H1; j++)
          *(v16a *)s->a2[i][j] = acc[j][0], *(v16a *)(s->a2[i][j] + 16) = acc[j][1];
      }
      for (int i = 0; i < H2; i++)
        for (int j = 0; j < H2; j++)
          for (int c = 0; c < C2; c++) {
            float m = MAXV(MAXV(s->a2[2 * i][2 * j][c], s->a2[2 * i][2 * j + 1][c]),
                           MAXV(s->a2[2 * i + 1][2 * j][c], s->a2[2 * i + 1][2 * j + 1][c]));
            s->p2[c * H2 * H2 + i * H2 + j] = MAXV(m, 0.0f);
          }
      float z[O], top = -3e38f, sum = 0;
      for (int o = 0; o < O; o++) {
        float t = b[o];
        for (int f = 0; f < FLAT; f++) t += s->p2[f] * a.wt[o][f];
        z[o] = t;
        top = MAXV(t, top);
      }
      float own = z[y[n]] - top;
      for (int o = 0; o < O; o++) {
        z[o] = v_exp(z[o] - top);
        sum += z[o];
      }
      loss += logf(sum) - own;
      for (int o = 0; o < O; o++) z[o] /= B * sum;
      z[y[n]] -= 1.0f / B;
      memset(s->dp2, 0, sizeof s->dp2);
      for (int o = 0; o < O; o++) {
        float d = z[o];
        g->b[o] += d;
        for (int f = 0; f < FLAT; f++) {
          s->dp2[f] += d * a.wt[o][f];
          g->w[o * FLAT + f] += d * s->p2[f];
        }
      }
      for (int i = 0; i < H1; i++)
        for (int j = 0; j < H1; j++)
          for (int c = 0; c < C2; c++) {
            int f = c * H2 * H2 + i / 2 * H2 + j / 2;
            float v = s->a2[i][j][c];
            float d = v > 0 && v == s->p2[f] ? s->dp2[f] : 0;
            s->d2[i + 1][j + 1][c] = d;
            g->b2[c] += d;
          }
      for (int q = 0; q < 9; q++)
        for (int c0 = 0; c0 < C1; c0 += 8) {
          v16a acc[8][2];
#pragma GCC unroll 8
          for (int c = 0; c < 8; c++)
            acc[c][0] = *(v16a *)g->k2[q][c0 + c], acc[c][1] = *(v16a *)(g->k2[q][c0 + c] + 16);
          for (int i = 0; i < H1; i++)
            for (int j = 0; j < H1; j++) {
              v16a d0 = *(v16a *)s->d2[i + 1][j + 1], d1 = *(v16a *)(s->d2[i + 1][j + 1] + 16);
              const float *in = &s->p1[i + q / 3][j + q % 3][c0];
#pragma GCC unroll 8
              for (int c = 0; c < 8; c++) acc[c][0] += in[c] * d0, acc[c][1] += in[c] * d1;
            }
#pragma GCC unroll 8
          for (int c = 0; c < 8; c++)
            *(v16a *)g->k2[q][c0 + c] = acc[c][0], *(v16a *)(g->k2[q][c0 + c] + 16) = acc[c][1];
        }
      for (int i = 0; i < H1; i++) {
        v16a acc[H1];
#pragma GCC unroll 14
        for (int j = 0; j < H1; j++) acc[j] = (v16a){0};
        for (int q = 0; q < 9; q++)
          for (int o = 0; o < C2; o++) {
            v16a k = *(v16a *)a.k2t[q][o];
            const float *in = &s->d2[i + 2 - q / 3][2 - q % 3][o];
#pragma GCC unroll 14
            for (int j = 0; j < H1; j++) acc[j] += in[j * C2] * k;
          }
#pragma GCC unroll 14
        for (int j = 0; j < H1; j++) *(v16a *)s->dp1[i][j] = acc[j];
      }
      v16a acc[9], bias = (v16a){0};
#pragma GCC unroll 9
      for (int q = 0; q < 9; q++) acc[q] = *(v16a *)g->k1[q];
      for (int i = 0; i < S; i++)
        for (int j = 0; j < S; j++) {
          v16a v = *(v16a *)s->a1[i][j], m = *(v16a *)s->p1[i / 2 + 1][j / 2 + 1],
               d = *(v16a *)s->dp1[i / 2][j / 2];
          d = (v16a)((i16)d & ((v > 0.0f) & (v == m)));
          bias += d;
#pragma GCC unroll 9
          for (int q = 0; q < 9; q++) acc[q] += s->x[i + q / 3][j + q % 3] * d;
        }
#pragma GCC unroll 9
      for (int q = 0; q < 9; q++) *(v16a *)g->k1[q] = acc[q];
      for (int c = 0; c < C1; c++) g->b1[c] += ((float *)&bias)[c];
    }
  }
  for (int t = 0; t < used; t++) {
    Grad *g = &a.t[t].g;
    for (int c = 0; c < C1; c++) {
      b1[c] -= lr * g->b1[c];
      for (int q = 0; q < 9; q++) k1[c * 9 + q] -= lr * g->k1[q][c];
    }
    for (int o = 0; o < C2; o++) {
      b2[o] -= lr * g->b2[o];
      for (int c = 0; c < C1; c++)
        for (int q = 0; q < 9; q++) k2[(o * C1 + c) * 9 + q] -= lr * g->k2[q][c][o];
    }
    for (int o = 0; o < O; o++) {
      b[o] -= lr * g->b[o];
      for (int f = 0; f < FLAT; f++) w[f * O + o] -= lr * g->w[o * FLAT + f];
    }
  }
  return loss / B;
}
