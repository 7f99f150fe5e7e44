/* tile {a1=1 of 7, a2=1 of 45}: random_bits, ge, 2 where, add, 2 mul; programs.py:61, programs.py:62 */
extern "C" __global__ void kernel_0(float *g0, int64_t *g1, int64_t *g2, float *g3, float *g4, int64_t *error) {
  for (int tile = blockIdx.x * blockDim.x + threadIdx.x; tile < 315; tile += gridDim.x * blockDim.x) {
    const int b0 = tile / 45;
    const int b1 = tile % 45;
    {
      float *const p0 = g0 + b0 * 45L + b1;
      int64_t *const p1 = g1;
      int64_t *const p2 = g2;
      const int p3 = b0;
      const int p4 = b1;
      float *const p5 = g3 + b0 * 45L + b1;
      float *const p6 = g4 + b0 * 45L + b1;
      float v1 = p0[0];
      float v2 = exp_f32(v1);
      int64_t v3 = p1[0];
      int64_t v4 = p2[0];
      uint32_t v5 = random_bits(v3, v4 + 0, p3 * 45 + p4);
      int v6 = v5 >= 1073741824u;
      float v7 = v2 * 1.3333334f;
      float v8 = v6 ? v7 : 0.0f;
      p5[0] = v8;
      float v9 = v8 + v8;
      float v10 = v6 ? v9 : 0.0f;
      float v11 = v10 * 1.3333334f;
      float v12 = v11 * v2;
      p6[0] = v12;
    }
  }
}

// kernel_0<<<2, 256>>>(input 0, input 1, input 2, output 0, output 1)
