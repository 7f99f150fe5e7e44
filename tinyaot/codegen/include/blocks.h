/* How large the blocks of a product are (see gemm.h), by bytes of an element, and so what it packs
   into: known before the products are compiled. */
#ifndef TINYAOT_BLOCKS_H
#define TINYAOT_BLOCKS_H
#include <stdint.h>

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

#define COLUMNS(size) (2 * VECTOR_BYTES / (size)) /* of a panel of B */
#define GROUP(size) (256 / (size))                /* of a few panels, packed together */
#define LINE_OF(size) (64 / (size))               /* elements of a cache line */
#define KC 320                                    /* terms of a panel */
#define BLOCK (1 << 18)                           /* bytes of a block of A: half an L2 */
#define FEW 384 /* columns for which packing A costs more than it saves, if it is deeper than KC */
#define UP(x, to) (((x) + (to)-1) / (to) * (to))

/* Whether A is read where it lies: by one panel of B, or along its rows, by a few or in one go. */
static inline int in_place(int size, int64_t n, int64_t k, int64_t a_col) {
  return n <= COLUMNS(size) || (a_col == 1 && (n <= FEW || k <= KC));
}

/* `all` in equal parts of at most `most`, a multiple of `unit`. */
static inline int64_t part(int64_t all, int64_t most, int64_t unit) {
  int64_t parts = (all + most - 1) / most;
  return UP((all + parts - 1) / parts, unit);
}

/* Rows of a block of A, at most. */
static inline int64_t most_rows(int size, int64_t depth) { return UP(BLOCK / (size * depth), MR); }

/* Bytes that a product of this size packs into (m, n and a_col as they are after a transposition;
   m = 0: see row.h, a row that is gathered); of at most this size, if it is not `exact`: a smaller
   one may have larger parts. `ready`: B is packed already. */
static inline int64_t pack_bytes(int size, int64_t m, int64_t n, int64_t k, int64_t a_col, int exact,
                                 int ready) {
  int64_t line = LINE_OF(size), depth = exact ? part(k, KC, line) : UP(k < KC ? k : KC, line);
  int64_t rows = exact ? part(m, most_rows(size, depth), MR) : UP(m, MR);
  int64_t block = size * depth * rows, most = BLOCK + MR * size * depth;
  if (block > most) block = most; /* the largest of any depth */
  int64_t beside = ready ? 0 : UP(n < GROUP(size) ? n : GROUP(size), COLUMNS(size));
  int64_t last = exact && k < depth ? depth - k : 0; /* terms that no panel has */
  if (!m) return size * (depth - last);
  if (in_place(size, n, k, a_col)) return size * (depth - last) * beside;
  return size * depth * beside + block - size * last * rows;
}
#endif
