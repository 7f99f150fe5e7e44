/* What a compiled step needs of the runtime: products, random bits, and one pool of
   threads for the process. */
#ifndef TINYAOT_RUNTIME_H
#define TINYAOT_RUNTIME_H
#include <stdint.h>

/* C (+)= A B with A m x k, B k x n, C m x n; a stride for rows and one for columns of each, so that
   transposes need no copy. `pack` is scratch, of as many bytes as `tinyaot_pack` says. */
#define TINYAOT_GEMM(T)                                                                            \
  (int64_t m, int64_t n, int64_t k, const T *a, int64_t a_row, int64_t a_col, const T *b,          \
   int64_t b_row, int64_t b_col, T *c, int64_t c_row, int64_t c_col, int accumulate, char *pack)

/* B of a product in the panels that it would be packed into, k x n elements, n rounded up to whole
   panels. A product takes them for B when its strides are 0. */
#define TINYAOT_PANELS(T)                                                                          \
  (int64_t n, int64_t k, const T *b, int64_t b_row, int64_t b_col, T *to)

/* Run one share of one level of a step. All shares of a level are finished before the next begins;
   which thread runs which share is open. */
typedef void (*tinyaot_level)(void *frame, int level, int share);

struct tinyaot_runtime {
  void (*gemm_f32) TINYAOT_GEMM(float);
  void (*gemm_f64) TINYAOT_GEMM(double);
  void (*panels_f32) TINYAOT_PANELS(float);
  void (*panels_f64) TINYAOT_PANELS(double);
  void (*parallel)(tinyaot_level run, void *frame, int levels, int shares);
  void (*random_row)(uint64_t seed, uint64_t draw, uint64_t first, int64_t count, uint32_t *out);
};
#endif
