/* tile {a1=1 of 33}: amax, 2 sub, exp, 2 sum, log, 3 where; programs.py:50 */
extern "C" __global__ void kernel_0(float *g0, float *g1, float *g2, int64_t *g3, float *g4, int *error) {
  for (int tile = blockIdx.x; tile < 33; tile += gridDim.x) {
    const int b0 = tile;
    {
      float *const p0 = g0 + b0 * 10L;
      float *const p1 = g1 + b0;
      float *const p2 = g2 + b0;
      int64_t *const p3 = g3 + b0;
      float *const p4 = g4 + b0;
      const int p5 = 10;
      int64_t v9 = p3[0];
      int v16 = v9 >= 0L;
      int v17 = v9 < 10L;
      int v18 = v16 && v17;
      float v2 = -INFINITY;
      int v2_nan = 0;
      for (int i0 = threadIdx.x; i0 < p5; i0 += blockDim.x) {
        float v1 = p0[i0];
        v2_nan |= v1 != v1;
        v2 = v2 > v1 ? v2 : v1;
      }
      v2 = fold_team(v2, amax_of());
      v2_nan = __syncthreads_or(v2_nan);
      v2 = v2_nan ? NAN : v2;
      if (threadIdx.x == 0) p1[0] = v2;
      float v6 = 0.0f;
      float v14 = 0.0f;
      for (int i0 = threadIdx.x; i0 < p5; i0 += blockDim.x) {
        float v3 = p0[i0];
        float v4 = v3 - v2;
        float v5 = exp_f32(v4);
        v6 += v5;
        int32_t v11 = (int32_t)(i0);
        int v12 = v11 == v9;
        float v13 = v12 ? v4 : 0.0f;
        v14 += v13;
      }
      v6 = fold_team(v6, sum_of());
      v14 = fold_team(v14, sum_of());
      if (threadIdx.x == 0) p2[0] = v6;
      float v7 = log_f32(v6);
      float v15 = v7 - v14;
      float v19 = v18 ? v15 : NAN;
      if (threadIdx.x == 0) p4[0] = v19;
    }
  }
}

/* tile {}: sum; programs.py:50 */
extern "C" __global__ void kernel_1(int64_t *g0, float *g1, float *g2, int *error) {
  for (int tile = blockIdx.x; tile < 1; tile += gridDim.x) {
    {
      int64_t *const p0 = g0;
      float *const p1 = g1;
      float *const p2 = g2;
      const int p3 = 33;
      float v5 = 0.0f;
      for (int i0 = threadIdx.x; i0 < p3; i0 += blockDim.x) {
        int64_t v1 = p0[i0];
        int v2 = v1 != (-100L);
        float v3 = p1[i0];
        float v4 = v2 ? v3 : 0.0f;
        v5 += v4;
      }
      v5 = fold_team(v5, sum_of());
      if (threadIdx.x == 0) p2[0] = v5;
    }
  }
}

/* tile {}: sum, 3 div, 3 where, neg, mul, add; programs.py:50 */
extern "C" __global__ void kernel_2(int64_t *g0, float *g1, float *g2, float *g3, float *g4, float *g5, float *g6, int *error) {
  __shared__ __align__(64) char scratch[256];
  for (int tile = blockIdx.x; tile < 1; tile += gridDim.x) {
    {
      int64_t *const p0 = g0;
      float *const p1 = (float *)(scratch + 192);
      float *const p2 = g1;
      float *const p3 = g2;
      float *const p4 = g3;
      float *const p5 = (float *)(scratch + 0);
      const int p6 = 33;
      float v8 = p2[0];
      float v7 = 0.0f;
      for (int i0 = threadIdx.x; i0 < p6; i0 += blockDim.x) {
        int64_t v1 = p0[i0];
        int v2 = v1 != (-100L);
        float v6 = (float)v2;
        v7 += v6;
      }
      v7 = fold_team(v7, sum_of());
      if (threadIdx.x == 0) p1[0] = v7;
      float v9 = v8 / v7;
      if (threadIdx.x == 0) p3[0] = v9;
      float v10 = 1.0f / v7;
      for (int i0 = threadIdx.x; i0 < p6; i0 += blockDim.x) {
        int64_t v11 = p0[i0];
        int v12 = v11 != (-100L);
        float v13 = v12 ? v10 : 0.0f;
        int v14 = v11 >= 0L;
        int v15 = v11 < 10L;
        int v16 = v14 && v15;
        float v17 = v16 ? v13 : 0.0f;
        float v18 = p4[i0];
        float v19 = v17 / v18;
        p5[i0] = v19;
      }
    }
    __syncthreads();
    {
      float *const p0 = g4;
      float *const p1 = g5;
      int64_t *const p2 = g0;
      float *const p3 = (float *)(scratch + 192);
      float *const p4 = (float *)(scratch + 0);
      float *const p5 = g6;
      float v12 = p3[0];
      float v13 = 1.0f / v12;
      for (int i0 = 0; i0 < 33; i0++) {
        float v2 = p1[i0];
        int64_t v6 = p2[i0];
        int v8 = v6 != (-100L);
        int v9 = v6 >= 0L;
        int v10 = v6 < 10L;
        int v11 = v9 && v10;
        float v14 = v8 ? v13 : 0.0f;
        float v15 = v11 ? v14 : 0.0f;
        float v16 = -v15;
        float v18 = p4[i0];
        for (int i1 = threadIdx.x; i1 < 10; i1 += blockDim.x) {
          float v1 = p0[i0 * 10 + i1];
          float v3 = v1 - v2;
          float v4 = exp_f32(v3);
          int32_t v5 = (int32_t)(i1);
          int v7 = v5 == v6;
          float v17 = v7 ? v16 : 0.0f;
          float v19 = v18 * v4;
          float v20 = v17 + v19;
          p5[i0 * 10 + i1] = v20;
        }
      }
    }
    __syncthreads();
  }
}

// kernel_0<<<33, 32>>>(input 0, arena 0, arena 192, input 1, arena 384)
// kernel_1<<<1, 64>>>(input 1, arena 384, arena 576)
// kernel_2<<<1, 32>>>(input 1, arena 576, output 0, arena 192, input 0, arena 0, output 1)
