/* A matrix product in the manner of BLIS (Van Zee and van de Geijn, 2015): blocks of A packed for
   L2 and panels of B for L1, and a micro-kernel that keeps an MR x NR block of C in vector
   registers. A is read in place where few panels of B use it. A few panels of B are packed when
   they are needed. Written in vector extensions; an object for each element type, with T, LANE (an
   integer as wide) and NAME defined. One thread a call: callers share out rows or columns. */
#include "blocks.h"
#include "runtime.h"
#include <string.h>

#define VL ((int)(VECTOR_BYTES / sizeof(T)))
#define NR ((int)COLUMNS(sizeof(T)))
#define SHORT ((int)(16 / sizeof(T))) /* elements of the shortest vector */
#define LINE ((int)LINE_OF(sizeof(T)))
#define WIDE ((int)GROUP(sizeof(T)))
#define AHEAD 8 /* rows of panels that are on their way from memory */
#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define LOCAL(name) PASTE(PASTE(NAME, _), name)

typedef T LOCAL(vec) __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(T)), may_alias));
typedef T LOCAL(avec) __attribute__((vector_size(VECTOR_BYTES), may_alias));
typedef T LOCAL(svec) __attribute__((vector_size(16), aligned(sizeof(T)), may_alias));
typedef LANE LOCAL(lanes) __attribute__((vector_size(VECTOR_BYTES)));

/* to (+)= from, a few elements that lie side by side. */
static inline __attribute__((always_inline)) void
LOCAL(few)(int count, const T *restrict from, T *restrict to, int add) {
  int x = 0;
  for (; x + SHORT <= count; x += SHORT) {
    LOCAL(svec) v = *(const LOCAL(svec) *)(from + x);
    if (add) v += *(LOCAL(svec) *)(to + x);
    *(LOCAL(svec) *)(to + x) = v;
  }
  for (; x < count; x++) to[x] = (add ? to[x] : 0) + from[x];
}

/* c (+)= a b for one block of `rows` rows, MR at most, and `wide` vectors; b is packed, and row i
   of a begins at a + row[i], its elements a `step` apart. It needs all registers, so each use of it
   is a function of its own, not inlined. */
static inline __attribute__((always_inline)) void
LOCAL(micro)(int rows, int wide, int64_t kc, const T *a, const int64_t *row, int64_t step,
             const T *restrict b, T *restrict c, int64_t c_row, int add) {
  LOCAL(avec) acc[MR][2];
  const T *at[MR];
#pragma GCC unroll 16
  for (int i = 0; i < rows; i++) acc[i][0] = acc[i][1] = (LOCAL(avec)){0}, at[i] = a + row[i];
#pragma GCC unroll 4
  for (int64_t p = 0; p < kc; p++) {
    LOCAL(avec) right[2];
#pragma GCC unroll 2
    for (int j = 0; j < wide; j++) right[j] = *(const LOCAL(avec) *)(b + p * NR + j * VL);
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
      T left = at[i][p * step];
#pragma GCC unroll 2
      for (int j = 0; j < wide; j++) acc[i][j] += left * right[j];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
    for (int j = 0; j < wide; j++) {
      LOCAL(vec) *to = (LOCAL(vec) *)(c + i * c_row + j * VL);
      LOCAL(vec) sum = acc[i][j];
      if (add) sum += *to;
      *to = sum;
    }
}

/* A whole block, with rows of a where they lie, or packed. */
static __attribute__((noinline)) void
LOCAL(placed)(int64_t kc, const T *a, int64_t a_row, const T *restrict b, T *restrict c,
              int64_t c_row, int add) {
  int64_t row[MR];
  for (int i = 0; i < MR; i++) row[i] = i * a_row;
  LOCAL(micro)(MR, 2, kc, a, row, 1, b, c, c_row, add);
}

static __attribute__((noinline)) void
LOCAL(packed)(int64_t kc, const T *a, const T *restrict b, T *restrict c, int64_t c_row, int add) {
  int64_t row[MR];
  for (int i = 0; i < MR; i++) row[i] = i;
  LOCAL(micro)(MR, 2, kc, a, row, MR, b, c, c_row, add);
}

/* The same for h <= MR rows and w <= NR columns of c, with steps of its own. Rows of a beyond h are
   read as its last. */
static __attribute__((noinline)) void
LOCAL(edge)(int h, int w, int64_t kc, const T *a, int64_t a_row, int64_t step, const T *restrict b,
            T *c, int64_t c_row, int64_t c_col, int add) {
  T block[MR * NR] __attribute__((aligned(64)));
  int64_t row[MR];
  for (int i = 0; i < MR; i++) row[i] = (i < h ? i : h - 1) * a_row;
  if (w > VL && h > MR / 2)
    LOCAL(micro)(MR, 2, kc, a, row, step, b, block, NR, 0);
  else if (w > VL)
    LOCAL(micro)(MR / 2, 2, kc, a, row, step, b, block, NR, 0);
  else if (h > MR / 2)
    LOCAL(micro)(MR, 1, kc, a, row, step, b, block, NR, 0);
  else
    LOCAL(micro)(MR / 2, 1, kc, a, row, step, b, block, NR, 0);
  for (int y = 0; y < h; y++)
    if (c_col == 1)
      LOCAL(few)(w, block + y * NR, c + y * c_row, add);
    else
      for (int x = 0; x < w; x++) {
        T *to = c + y * c_row + x * c_col;
        *to = (add ? *to : 0) + block[y * NR + x];
      }
}

#ifndef __clang__ /* which has no shuffle by a computed mask */
/* Lanes change places with vectors s apart. */
static inline __attribute__((always_inline)) void LOCAL(exchange)(LOCAL(avec) *v, int s) {
  LOCAL(lanes) low, high;
#pragma GCC unroll 16
  for (int l = 0; l < VL; l++) low[l] = l & s ? VL + l - s : l, high[l] = l & s ? VL + l : l + s;
#pragma GCC unroll 16
  for (int i = 0; i < VL; i++)
    if (!(i & s)) {
      LOCAL(avec) a = v[i], b = v[i + s];
      v[i] = __builtin_shuffle(a, b, low), v[i + s] = __builtin_shuffle(a, b, high);
    }
}
#endif

/* Turn VL lines of VL elements into VL columns. */
static inline __attribute__((always_inline)) void
LOCAL(turn)(const T *from, int64_t line, T *restrict out, int64_t width) {
#ifdef __clang__
  for (int l = 0; l < VL; l++)
    for (int p = 0; p < VL; p++) out[p * width + l] = from[l * line + p];
#else
  LOCAL(avec) v[VL];
#pragma GCC unroll 16
  for (int l = 0; l < VL; l++) v[l] = *(const LOCAL(vec) *)(from + l * line);
  if (VL > 1) LOCAL(exchange)(v, 1);
  if (VL > 2) LOCAL(exchange)(v, 2);
  if (VL > 4) LOCAL(exchange)(v, 4);
  if (VL > 8) LOCAL(exchange)(v, 8);
#pragma GCC unroll 16
  for (int l = 0; l < VL; l++) *(LOCAL(vec) *)(out + l * width) = v[l];
#endif
}

/* Panels of `width` lines, each a vector along k: out[line][p] -> packed[p * width + line]. Where
   lines lie side by side, a few panels are filled together: their rows share pages and cache lines.
   What comes next is on its way from memory, since packing is mostly waiting. */
static inline __attribute__((always_inline)) void
LOCAL(pack)(int width, const T *from, int64_t line, int64_t step, int64_t lines, int64_t kc,
            T *restrict out) {
  while (line == 1 && lines >= width) {
    int64_t most = WIDE / width, panels = lines / width;
    if (panels > most) panels = most;
    for (int64_t p = 0; p < kc; p++) {
      for (int64_t i = 0; i < panels * width; i += LINE)
        __builtin_prefetch(from + (p + AHEAD) * step + i);
      for (int64_t i = 0; i < panels; i++)
        memcpy(out + (i * kc + p) * width, from + p * step + i * width, width * sizeof(T));
    }
    lines -= panels * width, from += panels * width, out += panels * width * kc;
  }
  for (int64_t i = 0; i < lines; i += width, out += width * kc, from += width * line) {
    int h = lines - i < width ? (int)(lines - i) : width;
    int64_t p = 0;
    if (h < width) memset(out, 0, width * kc * sizeof(T));
    if (line == 1)
      for (; p < kc; p++) LOCAL(few)(h, from + p * step, out + p * width, 0);
    if (h == width && step == 1 && width % VL == 0) {
      for (; p + VL <= kc; p += LINE) {
        for (int q = 0; q < width; q++) __builtin_prefetch(from + q * line + p + AHEAD / 4 * LINE);
        for (int q = 0; q < width; q += VL)
#pragma GCC unroll 4
          for (int e = 0; e < LINE; e += VL)
            if (p + e + VL <= kc)
              LOCAL(turn)(from + q * line + p + e, line, out + (p + e) * width + q, width);
      }
      p = kc / VL * VL;
    }
    for (int64_t p0 = p; p0 < kc; p0 += 16) {
      int64_t end = kc - p0 < 16 ? kc : p0 + 16;
      for (int q = 0; q < h; q++)
        for (p = p0; p < end; p++) out[p * width + q] = from[q * line + p * step];
    }
  }
}

/* Each a function of its own: quicker to compile, and quicker. */
static __attribute__((noinline)) void
LOCAL(pack_left)(const T *from, int64_t line, int64_t step, int64_t lines, int64_t kc,
                 T *restrict out) {
  LOCAL(pack)(MR, from, line, step, lines, kc, out);
}

static __attribute__((noinline)) void
LOCAL(pack_right)(const T *from, int64_t line, int64_t step, int64_t lines, int64_t kc,
                  T *restrict out) {
  LOCAL(pack)(NR, from, line, step, lines, kc, out);
}

#include "row.h"

/* The right operand of a product in panels: all of it. */
void LOCAL(panels) TINYAOT_PANELS(T) {
  int64_t depth = part(k, KC, LINE);
  for (int64_t k0 = 0; k0 < k; k0 += depth) {
    int64_t kc = k - k0 < depth ? k - k0 : depth;
    LOCAL(pack_right)(b + k0 * b_row, b_col, b_row, n, kc, to + k0 * UP(n, NR));
  }
}

void NAME TINYAOT_GEMM(T) {
  int ready = !b_row && !b_col;
  T *right = (T *)pack;
  if (n == 1 && !ready && LOCAL(row)(m, k, b, b_row, a, a_col, a_row, c, c_row, accumulate, right))
    return;
  if (m == 1 && !ready && LOCAL(row)(n, k, a, a_col, b, b_row, b_col, c, c_col, accumulate, right))
    return;
  if (c_col != 1 && (c_row == 1 || n == 1) && m > 1) { /* compute the transpose */
    NAME(n, m, k, b, b_col, b_row, a, a_col, a_row, c, c_col, c_row, accumulate, pack);
    return;
  }
  int here = in_place(sizeof(T), n, k, a_col);
  int64_t depth = part(k, KC, LINE), height = part(m, most_rows(sizeof(T), depth), MR);
  int64_t beside = n < WIDE ? n : WIDE;
  T *pa = ready ? right : right + depth * UP(beside, NR);
  for (int64_t k0 = 0; k0 < k; k0 += depth) {
    int64_t kc = k - k0 < depth ? k - k0 : depth;
    int add = accumulate || k0;
    for (int64_t i0 = 0; i0 < m; i0 += height) {
      int64_t mc = m - i0 < height ? m - i0 : height, panel = here ? MR * a_row : MR * kc;
      const T *left = a + i0 * a_row + k0 * a_col;
      if (!here) {
        LOCAL(pack_left)(left, a_row, a_col, mc, kc, pa);
        left = pa;
      }
      for (int64_t j = 0; j < n; j += NR) {
        int64_t w = n - j, packed = j % WIDE, ahead = ready ? MR * kc * NR / mc : 0;
        if (!ready && !packed)
          LOCAL(pack_right)(b + k0 * b_row + j * b_col, b_col, b_row, w < beside ? w : beside, kc,
                            right);
        const T *top = ready ? b + k0 * UP(n, NR) + j * kc : right + packed * kc;
        if (w > NR) w = NR;
        for (int64_t i = 0; i < mc; i += MR) {
          int h = mc - i < MR ? (int)(mc - i) : MR;
          const T *rows = left + i / MR * panel;
          T *to = c + (i0 + i) * c_row + j * c_col;
          for (int64_t q = 0; q < ahead; q += LINE) /* a share of the next panel */
            __builtin_prefetch(top + kc * NR + i / MR * ahead + q);
          if (h < MR || w < NR || c_col != 1 || (here && a_col != 1))
            LOCAL(edge)(h, w, kc, rows, here ? a_row : 1, here ? a_col : MR, top, to, c_row, c_col,
                        add);
          else if (here)
            LOCAL(placed)(kc, rows, a_row, top, to, c_row, add);
          else
            LOCAL(packed)(kc, rows, top, to, c_row, add);
        }
      }
    }
  }
}
