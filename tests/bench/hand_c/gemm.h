/* A BLIS-style float32 matrix product: C = op(A) op(B) (+ C), row-major.
   Packed panels, an MR x NR micro-kernel in gcc vector extensions. One thread
   per call; callers split rows or columns among threads. */
#ifndef GEMM_H
#define GEMM_H
#include <string.h>
#ifdef __AVX512F__
#define MR 8
#define VL 16
#else /* vectors wider than the machine's are taken apart, at a hundredth of the speed */
#define MR 6
#define VL 8
#endif
#define NV 2
#define NR (NV * VL)
#define KC 384
#define MC (96 / MR * MR)
#define NC 1024
typedef float vf __attribute__((vector_size(4 * VL), aligned(4), may_alias));
typedef float vfa __attribute__((vector_size(4 * VL), aligned(4 * VL), may_alias));

static inline __attribute__((always_inline)) void micro(int kc, const float *restrict a,
                                                        const float *restrict b, float *restrict c,
                                                        int ldc, int accumulate) {
  vfa acc[MR][NV];
#pragma GCC unroll 16
  for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
    for (int j = 0; j < NV; j++) acc[i][j] = (vfa){0};
  for (int p = 0; p < kc; p++) {
    vfa bv[NV];
#pragma GCC unroll 4
    for (int j = 0; j < NV; j++) bv[j] = *(const vfa *)(b + p * NR + j * VL);
#pragma GCC unroll 16
    for (int i = 0; i < MR; i++) {
#pragma GCC unroll 4
      for (int j = 0; j < NV; j++) acc[i][j] += a[p * MR + i] * bv[j];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
    for (int j = 0; j < NV; j++) {
      vf *to = (vf *)(c + i * ldc + j * VL);
      vf r = acc[i][j];
      if (accumulate) r += *to;
      *to = r;
    }
}

/* pack op(B)[k0..k0+kc, j0..j0+nc] into panels of NR columns */
static void pack_b(int trans, const float *B, int ldb, int kc, int nc, float *restrict out) {
  for (int j = 0; j < nc; j += NR) {
    int w = nc - j < NR ? nc - j : NR;
    float *o = out + (long)j * kc;
    if (!trans && w == NR)
      for (int p = 0; p < kc; p++) memcpy(o + p * NR, B + (long)p * ldb + j, NR * sizeof(float));
    else if (trans && w == NR)
      for (int p0 = 0; p0 < kc; p0 += 16) {
        int pe = kc - p0 < 16 ? kc : p0 + 16;
        for (int q = 0; q < NR; q++)
          for (int p = p0; p < pe; p++) o[p * NR + q] = B[(long)(j + q) * ldb + p];
      }
    else
      for (int p = 0; p < kc; p++)
        for (int q = 0; q < NR; q++)
          o[p * NR + q] =
              q < w ? (trans ? B[(long)(j + q) * ldb + p] : B[(long)p * ldb + j + q]) : 0.0f;
  }
}
static void pack_a(int trans, const float *A, int lda, int mc, int kc, float *restrict out) {
  for (int i = 0; i < mc; i += MR) {
    int h = mc - i < MR ? mc - i : MR;
    float *o = out + (long)i * kc;
    if (trans && h == MR)
      for (int p = 0; p < kc; p++)
        for (int q = 0; q < MR; q++) o[p * MR + q] = A[(long)p * lda + i + q];
    else if (h == MR)
      for (int p0 = 0; p0 < kc; p0 += 16) {
        int pe = kc - p0 < 16 ? kc : p0 + 16;
        for (int q = 0; q < MR; q++)
          for (int p = p0; p < pe; p++) o[p * MR + q] = A[(long)(i + q) * lda + p];
      }
    else
      for (int p = 0; p < kc; p++)
        for (int q = 0; q < MR; q++)
          o[p * MR + q] =
              q < h ? (trans ? A[(long)p * lda + i + q] : A[(long)(i + q) * lda + p]) : 0.0f;
  }
}

#define UP(x, to) (((x) + (to) - 1) / (to) * (to))
#define GEMM_SCRATCH (KC * UP(NC, NR) + UP(MC, MR) * KC)

/* op(A) is m x k, op(B) is k x n; ta: A is stored k x m; tb: B is stored n x k */
static void gemm(int ta, int tb, int m, int n, int k, const float *A, int lda, const float *B,
                 int ldb, float *C, int ldc, int accumulate, float *scratch) {
  float *pb = scratch, *pa = scratch + KC * UP(NC, NR);
  float tile[MR * NR] __attribute__((aligned(64)));
  for (int j0 = 0; j0 < n; j0 += NC) {
    int nc = n - j0 < NC ? n - j0 : NC;
    for (int k0 = 0; k0 < k; k0 += KC) {
      int kc = k - k0 < KC ? k - k0 : KC, add = accumulate || k0;
      pack_b(tb, tb ? B + (long)j0 * ldb + k0 : B + (long)k0 * ldb + j0, ldb, kc, nc, pb);
      for (int i0 = 0; i0 < m; i0 += MC) {
        int mc = m - i0 < MC ? m - i0 : MC;
        pack_a(ta, ta ? A + (long)k0 * lda + i0 : A + (long)i0 * lda + k0, lda, mc, kc, pa);
        for (int j = 0; j < nc; j += NR)
          for (int i = 0; i < mc; i += MR) {
            float *c = C + (long)(i0 + i) * ldc + j0 + j;
            const float *a = pa + (long)i * kc, *b = pb + (long)j * kc;
            if (mc - i >= MR && nc - j >= NR) micro(kc, a, b, c, ldc, add);
            else {
              int h = mc - i < MR ? mc - i : MR, w = nc - j < NR ? nc - j : NR;
              micro(kc, a, b, tile, NR, 0);
              for (int y = 0; y < h; y++)
                for (int x = 0; x < w; x++)
                  c[(long)y * ldc + x] = (add ? c[(long)y * ldc + x] : 0.0f) + tile[y * NR + x];
            }
          }
      }
    }
  }
}
#endif
