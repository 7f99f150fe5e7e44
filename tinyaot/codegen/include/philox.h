/* Philox4x32-10 (Salmon et al., 2011) for a row of elements: word element % 4 of the block at
   (element / 4, draw), as `random_bits` has it for one element, with all words of a block in use.

   A vector holds a word of four blocks in the low halves of its lanes; what is in the high halves
   is dropped by the multiplication. Lanes are stored as they lie, so words come out in order on
   little-endian machines. */
typedef uint64_t quad __attribute__((vector_size(32)));
#ifdef __AVX2__
typedef int32_t halves __attribute__((vector_size(32)));
#define WIDE_PRODUCT(x, y) ((quad)__builtin_ia32_pmuludq256((halves)(x), (halves)(y)))
#else
#define WIDE_PRODUCT(x, y) (((x)&0xFFFFFFFFu) * (y))
#endif
#define QUADS 2 /* at a time: a round waits for its multiplications */
#define WORDS (16 * QUADS)

/* The bits of `count` elements from `first` on. */
static void random_row(uint64_t seed, uint64_t draw, uint64_t first, int64_t count, uint32_t *out) {
  const quad m0 = (quad){0} + 0xD2511F53u, m1 = (quad){0} + 0xCD9E8D57u;
  while (count > 0) {
    quad c0[QUADS], c1[QUADS], c2[QUADS], c3[QUADS];
#pragma GCC unroll 2
    for (int j = 0; j < QUADS; j++) {
      c0[j] = (first >> 2) + 4 * j + (quad){0, 1, 2, 3}, c1[j] = c0[j] >> 32;
      c2[j] = (quad){0} + draw, c3[j] = c2[j] >> 32;
    }
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#pragma GCC unroll 10
    for (int r = 0; r < 10; r++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
#pragma GCC unroll 2
      for (int j = 0; j < QUADS; j++) {
        quad p = WIDE_PRODUCT(c0[j], m0), q = WIDE_PRODUCT(c2[j], m1);
        c0[j] = q >> 32 ^ c1[j] ^ k0, c1[j] = q;
        c2[j] = p >> 32 ^ c3[j] ^ k1, c3[j] = p;
      }
    uint64_t pairs[WORDS / 2];
#pragma GCC unroll 2
    for (int j = 0; j < QUADS; j++) {
      quad low = (c0[j] & 0xFFFFFFFFu) | c1[j] << 32, high = (c2[j] & 0xFFFFFFFFu) | c3[j] << 32;
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++)
        pairs[8 * j + 2 * i] = low[i], pairs[8 * j + 2 * i + 1] = high[i];
    }
    int64_t lead = first & 3, n = count < WORDS - lead ? count : WORDS - lead;
    if (n == WORDS)
      memcpy(out, pairs, sizeof pairs);
    else
      memcpy(out, (uint32_t *)pairs + lead, n * sizeof *out);
    out += n, first += n, count -= n;
  }
}
