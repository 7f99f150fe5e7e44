/* tile {}: add, 3 cast, 2 pow, 2 sub, div, sqrt; programs.py:76 */
extern "C" __global__ void kernel_0(float *g0, int64_t *error) {
  for (int tile = blockIdx.x * blockDim.x + threadIdx.x; tile < 1; tile += gridDim.x * blockDim.x) {
    {
      float *const p0 = g0;
      float v1 = p0[0];
      float v2 = v1 + 1.0f;
      p0[0] = v2;
    }
  }
}

/* tile {}: sum; programs.py:73 */
extern "C" __global__ void kernel_1(float *g0, float *g1, float *g2, int64_t *error) {
  for (int tile = blockIdx.x; tile < 1; tile += gridDim.x) {
    {
      float *const y = g2;
      if (threadIdx.x == 0) y[0] = 0.0f;
    }
    __syncthreads();
    {
      float *const p0 = g0;
      float *const p1 = g1;
      float *const p2 = g2;
      for (int i0 = 0; i0 < 20; i0++) {
        float v4 = 0.0f;
        for (int i1 = threadIdx.x; i1 < 31; i1 += blockDim.x) {
          float v1 = p0[i0 * 31 + i1];
          float v2 = p1[i0 * 31 + i1];
          float v3 = v1 * v2;
          v4 += v3;
        }
        v4 = fold_team(v4, sum_of());
        if (threadIdx.x == 0) p2[0] += v4;
      }
    }
  }
}

/* tile {a5=1 of 20, a6=1 of 31}: 3 add, sqrt, 2 div, mul, sub; programs.py:76 */
extern "C" __global__ void kernel_2(double *g0, float *g1, float *g2, float *g3, float *g4, float *g5, int64_t *error) {
  for (int tile = blockIdx.x * blockDim.x + threadIdx.x; tile < 620; tile += gridDim.x * blockDim.x) {
    const int b0 = tile / 31;
    const int b1 = tile % 31;
    {
      double *const p0 = g0;
      float *const p1 = g1;
      float *const p2 = g2 + b0 * 31L + b1;
      float *const p3 = g3 + b0 * 31L + b1;
      float *const p4 = g4 + b0 * 31L + b1;
      float *const p5 = g5 + b0 * 31L + b1;
      double v1 = p0[0];
      double v2 = v1 * 0.01;
      double v3 = 1.0 - v2;
      float v4 = (float)v3;
      float v5 = p1[0];
      double v6 = (double)v5;
      double v7 = pow_f64(0.9, v6);
      double v8 = 1.0 - v7;
      double v9 = v1 / v8;
      double v10 = pow_f64(0.999, v6);
      double v11 = 1.0 - v10;
      double v12 = sqrt_f64(v11);
      float v13 = (float)v12;
      float v14 = (float)v9;
      float v15 = p2[0];
      float v16 = v15 * v4;
      float v17 = p3[0];
      float v18 = p4[0];
      float v19 = v17 - v18;
      float v20 = v19 * 0.1f;
      float v21 = v18 + v20;
      p4[0] = v21;
      float v22 = p5[0];
      float v23 = v22 * 0.999f;
      float v24 = v17 * v17;
      float v25 = v24 * 0.001f;
      float v26 = v23 + v25;
      p5[0] = v26;
      float v27 = sqrt_f32(v26);
      float v28 = v27 / v13;
      float v29 = v28 + 1e-08f;
      float v30 = v21 * v14;
      float v31 = v30 / v29;
      float v32 = v16 - v31;
      p2[0] = v32;
    }
  }
}

// kernel_0<<<1, 1>>>(input 5)
// kernel_1<<<1, 32>>>(input 1, input 0, output 0)
// kernel_2<<<3, 256>>>(input 2, input 5, input 1, input 0, input 3, input 4)
