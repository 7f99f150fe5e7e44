/* float16 and bfloat16 as bits. Arithmetic is in float32: only casts know these, and they round to
   nearest, ties to even, as IEEE 754 says. Without branches, so that a compiler vectorises them. */

/* The exponent's bias differs by 112; a product with 2^112 also makes a subnormal normal. */
INLINE float f32_of_f16(uint16_t h) {
  float f = from_bits((h & 0x7fff) << 13) * 0x1p112f;
  int32_t special = f >= 65536.0f ? 0x7f800000 : 0; /* infinity or NaN */
  return from_bits(to_bits(f) | special | (int32_t)((uint32_t)(h & 0x8000) << 16));
}

/* A normal number is rounded by a carry out of the 13 bits that go, which may reach infinity; one
   below 2^-14 by a sum with 0.5, whose last bit is worth 2^-24. */
INLINE uint16_t f16_of_f32(float f) {
  int32_t bits = to_bits(f) & 0x7fffffff, sign = (to_bits(f) >> 16) & 0x8000;
  int32_t normal = (bits + 0xfff + ((bits >> 13) & 1) - (112 << 23)) >> 13;
  int32_t small = to_bits(from_bits(bits) + 0.5f) - 0x3f000000;
  int32_t h = bits < 0x38800000 ? small : normal;
  h = bits >= 0x47800000 ? 0x7c00 : h;
  h = bits > 0x7f800000 ? 0x7e00 : h;
  return (uint16_t)(h | sign);
}

INLINE float f32_of_bf16(uint16_t h) { return from_bits((int32_t)((uint32_t)h << 16)); }

INLINE uint16_t bf16_of_f32(float f) {
  uint32_t bits = (uint32_t)to_bits(f), rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return (uint16_t)(f != f ? (bits >> 16) | 0x40 : rounded);
}

/* Rounding twice is rounding once if the first time is to odd (Boldo and Melquiond, 2008): what a
   float32 cannot hold exactly becomes the neighbour whose last bit is set. */
INLINE float to_odd(double x) {
  float f = (float)x;
  int32_t bits = to_bits(f), away = fabs((double)f) > fabs(x);
  return (double)f == x || x != x ? f : from_bits((bits - away) | 1);
}

INLINE uint16_t f16_of_f64(double x) { return f16_of_f32(to_odd(x)); }
INLINE uint16_t bf16_of_f64(double x) { return bf16_of_f32((float)x); } /* twice, as ml_dtypes */
