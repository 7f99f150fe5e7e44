/* Stable sorts of keys with their places: by one byte after the other from the lowest up, each time
   by counting (Knuth, The Art of Computer Programming, vol. 3, 5.2.5); a few by insertion. Keys are
   unsigned integers in the order of what they stand for, where zeros are equal and NaN is last. */
#define SORT(W)                                                                                    \
  typedef struct { uint##W##_t key, at; } place_##W;                                               \
  INLINE const place_##W *sort_##W(place_##W *x, place_##W *spare, int64_t n) {                    \
    if (n <= 32) {                                                                                 \
      for (int64_t i = 1; i < n; i++) {                                                            \
        place_##W own = x[i];                                                                      \
        int64_t j = i;                                                                             \
        for (; j > 0 && x[j - 1].key > own.key; j--) x[j] = x[j - 1];                              \
        x[j] = own;                                                                                \
      }                                                                                            \
      return x;                                                                                    \
    }                                                                                              \
    for (int shift = 0; shift < W; shift += 8) {                                                   \
      uint##W##_t first[256] = {0}, before = 0;                                                    \
      for (int64_t i = 0; i < n; i++) first[x[i].key >> shift & 255]++;                            \
      if (first[x[0].key >> shift & 255] == (uint##W##_t)n) continue; /* they do not differ here */ \
      for (int b = 0; b < 256; b++) {                                                              \
        uint##W##_t count = first[b];                                                              \
        first[b] = before, before += count;                                                        \
      }                                                                                            \
      for (int64_t i = 0; i < n; i++) spare[first[x[i].key >> shift & 255]++] = x[i];              \
      place_##W *other = x;                                                                        \
      x = spare, spare = other;                                                                    \
    }                                                                                              \
    return x;                                                                                      \
  }
SORT(32)
SORT(64)

INLINE uint32_t key_i32(int32_t x) { return (uint32_t)x ^ 0x80000000u; }
INLINE uint32_t key_u32(uint32_t x) { return x; }
INLINE uint64_t key_i64(int64_t x) { return (uint64_t)x ^ 0x8000000000000000u; }
INLINE uint32_t key_f32(float x) {
  uint32_t bits = (uint32_t)to_bits(x + 0.0f); /* -0 becomes 0 */
  return x != x ? 0xffffffffu : bits >> 31 ? ~bits : bits | 0x80000000u;
}
INLINE uint64_t key_f64(double x) {
  uint64_t bits;
  double y = x + 0.0;
  memcpy(&bits, &y, 8);
  return x != x ? ~(uint64_t)0 : bits >> 63 ? ~bits : bits | 0x8000000000000000u;
}
