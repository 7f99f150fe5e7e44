/* A matrix product in the manner of BLIS (Van Zee and van de Geijn, 2015): panels of A and B packed
   so that they stream from cache, and a micro-kernel that keeps an MR x NR block of C in vector
   registers. Written in vector extensions; an object for each element type, with T and NAME
   defined. One thread a call: callers share out rows or columns. */
#include "runtime.h"
#include <string.h>

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#define MR 8
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#define MR 6 /* 12 accumulators, 2 columns of B, 1 element of A: 15 of 16 registers */
#else
#define VECTOR_BYTES 16
#define MR 4
#endif

#define VL ((int)(VECTOR_BYTES / sizeof(T)))
#define NR (2 * VL)
#define KC 320
#define MC (96 / MR * MR)
#define NC 1024
#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define LOCAL(name) PASTE(PASTE(NAME, _), name)
#define UP(x, to) (((x) + (to)-1) / (to) * (to))

typedef T LOCAL(vec) __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(T)), may_alias));
typedef T LOCAL(avec) __attribute__((vector_size(VECTOR_BYTES), may_alias));

/* c (+)= a b for one MR x NR block; a and b are packed. */
static inline __attribute__((always_inline)) void
LOCAL(micro)(int64_t kc, const T *restrict a, const T *restrict b, T *restrict c, int64_t row, int add) {
  LOCAL(avec) acc[MR][2];
#pragma GCC unroll 16
  for (int i = 0; i < MR; i++) acc[i][0] = acc[i][1] = (LOCAL(avec)){0};
  for (int64_t p = 0; p < kc; p++) {
    LOCAL(avec) b0 = *(const LOCAL(avec) *)(b + p * NR), b1 = *(const LOCAL(avec) *)(b + p * NR + VL);
#pragma GCC unroll 16
    for (int i = 0; i < MR; i++) {
      acc[i][0] += a[p * MR + i] * b0;
      acc[i][1] += a[p * MR + i] * b1;
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < MR; i++)
#pragma GCC unroll 2
    for (int j = 0; j < 2; j++) {
      LOCAL(vec) *to = (LOCAL(vec) *)(c + i * row + j * VL);
      LOCAL(vec) sum = acc[i][j];
      if (add) sum += *to;
      *to = sum;
    }
}

/* Panels of `width` lines, each line a vector along k: out[line][p] -> packed[p * width + line]. */
static inline __attribute__((always_inline)) void
LOCAL(pack)(int width, const T *from, int64_t line, int64_t step, int64_t lines, int64_t kc,
            T *restrict out) {
  for (int64_t i = 0; i < lines; i += width, out += width * kc, from += width * line) {
    int h = lines - i < width ? (int)(lines - i) : width;
    if (h == width && line == 1)
      for (int64_t p = 0; p < kc; p++) memcpy(out + p * width, from + p * step, width * sizeof(T));
    else if (h == width)
      for (int64_t p0 = 0; p0 < kc; p0 += 16) {
        int64_t end = kc - p0 < 16 ? kc : p0 + 16;
        for (int q = 0; q < width; q++)
          for (int64_t p = p0; p < end; p++) out[p * width + q] = from[q * line + p * step];
      }
    else
      for (int64_t p = 0; p < kc; p++)
        for (int q = 0; q < width; q++) out[p * width + q] = q < h ? from[q * line + p * step] : 0;
  }
}

/* Columns of B that are packed together. Where all rows of A fit, each panel is used up at once. */
static inline int64_t LOCAL(columns)(int64_t m, int64_t n) {
  return m <= MC ? NR : n < NC ? UP(n, NR) : NC;
}

/* Bytes that a product of this size packs into (m and n as they are after a transposition). */
int64_t LOCAL(pack_bytes)(int64_t m, int64_t n, int64_t k) {
  return (int64_t)sizeof(T) * (k < KC ? k : KC) * (LOCAL(columns)(m, n) + UP(m < MC ? m : MC, MR));
}

void NAME TINYAOT_GEMM(T) {
  if (c_col != 1 && (c_row == 1 || n == 1) && m > 1) { /* compute the transpose */
    NAME(n, m, k, b, b_col, b_row, a, a_col, a_row, c, c_col, c_row, accumulate, pack);
    return;
  }
  int64_t columns = LOCAL(columns)(m, n);
  T *pb = (T *)pack, *pa = pb + (k < KC ? k : KC) * columns;
  T block[MR * NR] __attribute__((aligned(64)));
  for (int64_t k0 = 0; k0 < k; k0 += KC) {
    int64_t kc = k - k0 < KC ? k - k0 : KC;
    int add = accumulate || k0;
    for (int64_t j0 = 0; j0 < n; j0 += columns) {
      int64_t nc = n - j0 < columns ? n - j0 : columns;
      LOCAL(pack)(NR, b + k0 * b_row + j0 * b_col, b_col, b_row, nc, kc, pb);
      for (int64_t i0 = 0; i0 < m; i0 += MC) {
        int64_t mc = m - i0 < MC ? m - i0 : MC;
        if (m > MC || !j0) LOCAL(pack)(MR, a + i0 * a_row + k0 * a_col, a_row, a_col, mc, kc, pa);
        for (int64_t j = 0; j < nc; j += NR)
          for (int64_t i = 0; i < mc; i += MR) {
            T *to = c + (i0 + i) * c_row + (j0 + j) * c_col;
            const T *left = pa + i * kc, *right = pb + j * kc;
            if (mc - i >= MR && nc - j >= NR && c_col == 1) {
              LOCAL(micro)(kc, left, right, to, c_row, add);
              continue;
            }
            int h = mc - i < MR ? (int)(mc - i) : MR, w = nc - j < NR ? (int)(nc - j) : NR;
            LOCAL(micro)(kc, left, right, block, NR, 0);
            for (int y = 0; y < h; y++)
              for (int x = 0; x < w; x++) {
                T *one = to + y * c_row + x * c_col;
                *one = (add ? *one : 0) + block[y * NR + x];
              }
          }
      }
    }
  }
}
