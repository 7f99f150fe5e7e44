/* tile {a1=1 of 40}: 4 sum, 4 div, 2 sub, 11 mul, 5 add, rsqrt; programs.py:39 */
extern "C" __global__ void kernel_0(float *g0, float *g1, float *g2, float *g3, float *g4, float *g5, float *g6, int64_t *error) {
  for (int tile = blockIdx.x; tile < 40; tile += gridDim.x) {
    const int b0 = tile;
    {
      float *const p0 = g0 + b0 * 96L;
      float *const p1 = g1 + b0 * 96L;
      float *const p2 = g2;
      float *const p3 = g3;
      float *const p4 = g4 + b0 * 96L;
      float *const p5 = g5 + b0 * 96L;
      float *const p6 = g6 + b0 * 96L;
      const int p7 = 96;
      __shared__ float row0[96];
      float v2 = 0.0f;
      for (int i0 = threadIdx.x; i0 < p7; i0 += blockDim.x) {
        float v1 = p0[i0];
        v2 += v1;
      }
      v2 = fold_team(v2, sum_of());
      float v3 = v2 / 96.0f;
      float v7 = 0.0f;
      float v28 = 0.0f;
      for (int i0 = threadIdx.x; i0 < p7; i0 += blockDim.x) {
        float v4 = p0[i0];
        float v5 = v4 - v3;
        float v6 = v5 * v5;
        v7 += v6;
        float v24 = p5[i0];
        float v25 = p2[i0];
        float v26 = v24 * v25;
        float v27 = v26 * v5;
        v28 += v27;
      }
      v7 = fold_team(v7, sum_of());
      v28 = fold_team(v28, sum_of());
      float v8 = v7 / 96.0f;
      float v9 = v8 + 1e-05f;
      float v10 = rsqrt_f32(v9);
      float v29 = v10 * v10;
      float v30 = v10 * v29;
      float v31 = v30 * (-0.5f);
      float v32 = v28 * v31;
      float v33 = v32 / 96.0f;
      float v37 = 0.0f;
      for (int i0 = threadIdx.x; i0 < p7; i0 += blockDim.x) {
        float v11 = p0[i0];
        float v12 = v11 - v3;
        float v13 = v12 * v10;
        p1[i0] = v13;
        float v14 = p2[i0];
        float v15 = v13 * v14;
        float v16 = p3[i0];
        float v17 = v15 + v16;
        p4[i0] = v17;
        float v21 = p5[i0];
        float v22 = v21 * v14;
        float v23 = v22 * v10;
        float v34 = v33 * v12;
        float v35 = v23 + v34;
        float v36 = v35 + v34;
        row0[i0] = v36;
        v37 += v36;
      }
      v37 = fold_team(v37, sum_of());
      float v38 = 0.0f - v37;
      float v39 = v38 / 96.0f;
      for (int i0 = threadIdx.x; i0 < p7; i0 += blockDim.x) {
        float v40 = row0[i0];
        float v41 = v40 + v39;
        p6[i0] = v41;
      }
    }
  }
}

/* tile {a4=1 of 96}: sum; programs.py:39 */
extern "C" __global__ void kernel_1(float *g0, float *g1, int64_t *error) {
  for (int tile = blockIdx.x * blockDim.x + threadIdx.x; tile < 96; tile += gridDim.x * blockDim.x) {
    const int b0 = tile;
    {
      float *const p0 = g0 + b0;
      float *const p1 = g1 + b0;
      const int p2 = 40;
      float v2 = 0.0f;
      for (int i0 = 0; i0 < p2; i0++) {
        float v1 = p0[i0 * 96];
        v2 += v1;
      }
      p1[0] = v2;
    }
  }
}

/* tile {a4=1 of 96}: sum; programs.py:39 */
extern "C" __global__ void kernel_2(float *g0, float *g1, float *g2, int64_t *error) {
  for (int tile = blockIdx.x * blockDim.x + threadIdx.x; tile < 96; tile += gridDim.x * blockDim.x) {
    const int b0 = tile;
    {
      float *const p0 = g0 + b0;
      float *const p1 = g1 + b0;
      float *const p2 = g2 + b0;
      const int p3 = 40;
      float v4 = 0.0f;
      for (int i0 = 0; i0 < p3; i0++) {
        float v1 = p0[i0 * 96];
        float v2 = p1[i0 * 96];
        float v3 = v1 * v2;
        v4 += v3;
      }
      p2[0] = v4;
    }
  }
}

// kernel_0<<<40, 128>>>(input 0, arena 0, input 1, input 2, output 0, input 3, output 1)
// kernel_1<<<1, 256>>>(input 3, output 3)
// kernel_2<<<1, 256>>>(input 3, arena 0, output 2)
