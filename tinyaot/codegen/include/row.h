/* A row times a matrix, for gemm.h: each element of the matrix is used once, so it is read where it
   lies, in order, and nothing is packed. How a sum adds up depends on its length alone. */

/* Terms of a sum with contiguous operands: two vectors of partial sums for each of `count`
   columns. */
static inline __attribute__((always_inline)) void
LOCAL(dots)(int count, int64_t k, const T *a, const T *b, int64_t b_col, T *c, int64_t c_col,
            int add) {
  LOCAL(vec) acc[4][2] = {{{0}}};
  int64_t p = 0;
  for (; p + 2 * VL <= k; p += 2 * VL)
#pragma GCC unroll 4
    for (int j = 0; j < count; j++)
#pragma GCC unroll 2
      for (int h = 0; h < 2; h++)
        acc[j][h] += *(const LOCAL(vec) *)(a + p + h * VL) *
                     *(const LOCAL(vec) *)(b + j * b_col + p + h * VL);
#pragma GCC unroll 4
  for (int j = 0; j < count; j++) {
    LOCAL(vec) both = acc[j][0] + acc[j][1];
    T sum = 0;
    for (int i = 0; i < VL; i++) sum += both[i];
    for (int64_t q = p; q < k; q++) sum += a[q] * b[j * b_col + q];
    c[j * c_col] = (add ? c[j * c_col] : 0) + sum;
  }
}

/* c (+)= a b. False where b is contiguous neither way, or c has gaps that b has not. */
static __attribute__((noinline)) int
LOCAL(row)(int64_t n, int64_t k, const T *a, int64_t a_col, const T *b, int64_t b_row,
           int64_t b_col, T *c, int64_t c_col, int add, T *pack) {
  if (b_row == 1) {
    int64_t depth = a_col == 1 ? k : part(k, KC, LINE);
    for (int64_t k0 = 0; k0 < k; k0 += depth) {
      int64_t kc = k - k0 < depth ? k - k0 : depth, j = 0;
      const T *left = a + k0;
      if (a_col != 1) {
        for (int64_t p = 0; p < kc; p++) pack[p] = a[(k0 + p) * a_col];
        left = pack;
      }
      for (; j + 4 <= n; j += 4)
        LOCAL(dots)(4, kc, left, b + k0 + j * b_col, b_col, c + j * c_col, c_col, add || k0);
      for (; j < n; j++)
        LOCAL(dots)(1, kc, left, b + k0 + j * b_col, b_col, c + j * c_col, c_col, add || k0);
    }
    return 1;
  }
  if (b_col != 1 || c_col != 1) return 0;
  for (int64_t j0 = 0; j0 < n; j0 += 16 * KC) { /* of c, as much as stays in L1 */
    int64_t nc = n - j0 < 16 * KC ? n - j0 : 16 * KC, p = 0;
    T *restrict to = c + j0;
    if (!add) memset(to, 0, nc * sizeof(T));
    for (; p + 4 <= k; p += 4) {
      const T *x = b + p * b_row + j0, *y = x + b_row, *z = y + b_row, *w = z + b_row;
      T ax = a[p * a_col], ay = a[(p + 1) * a_col], az = a[(p + 2) * a_col], aw = a[(p + 3) * a_col];
#pragma omp simd
      for (int64_t j = 0; j < nc; j++) to[j] += ax * x[j] + ay * y[j] + (az * z[j] + aw * w[j]);
    }
    for (; p < k; p++) {
      const T *x = b + p * b_row + j0;
      T ax = a[p * a_col];
#pragma omp simd
      for (int64_t j = 0; j < nc; j++) to[j] += ax * x[j];
    }
  }
  return 1;
}
