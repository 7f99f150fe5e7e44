/* tile {a1=1 of 33}: amax, 2 sub, exp, 2 sum, log, 2 where; programs.py:51 */
extern "C" __global__ void kernel_0(float *g0, float *g1, float *g2, int64_t *g3, float *g4, int64_t *error) {
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
      int v16 = v9 != (-100L);
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
      float v17 = v16 ? v15 : 0.0f;
      if (threadIdx.x == 0) p4[0] = v17;
    }
  }
}

/* tile {}: sum; programs.py:51 */
extern "C" __global__ void kernel_1(float *g0, float *g1, int64_t *error) {
  for (int tile = blockIdx.x; tile < 1; tile += gridDim.x) {
    {
      float *const p0 = g0;
      float *const p1 = g1;
      const int p2 = 33;
      float v2 = 0.0f;
      for (int i0 = threadIdx.x; i0 < p2; i0 += blockDim.x) {
        float v1 = p0[i0];
        v2 += v1;
      }
      v2 = fold_team(v2, sum_of());
      if (threadIdx.x == 0) p1[0] = v2;
    }
  }
}

/* tile {}: sum, 3 div, 2 where, neg, mul, add; programs.py:51 */
extern "C" __global__ void kernel_2(int64_t *g0, float *g1, float *g2, float *g3, float *g4, float *g5, float *g6, int64_t *error) {
  __shared__ __align__(64) char scratch[64];
  for (int tile = blockIdx.x; tile < 1; tile += gridDim.x) {
    {
      int64_t *const p0 = g0;
      float *const p1 = (float *)(scratch + 0);
      float *const p2 = g1;
      float *const p3 = g2;
      const int p4 = 33;
      float v9 = p2[0];
      int64_t v3 = INT64_MIN;
      int64_t v4 = 9223372036854775807L;
      float v8 = 0.0f;
      for (int i0 = threadIdx.x; i0 < p4; i0 += blockDim.x) {
        int64_t v1 = p0[i0];
        int64_t v2 = not_within(v1, 10, -100L);
        v3 = v3 > v2 ? v3 : v2;
        v4 = v4 < v2 ? v4 : v2;
        int64_t v5 = v1;
        int v6 = v5 != (-100L);
        float v7 = (float)v6;
        v8 += v7;
      }
      v3 = fold_team(v3, amax_of());
      v4 = fold_team(v4, amin_of());
      v8 = fold_team(v8, sum_of());
      if (v3 > 0) error[0] = v3;
      if (v4 < 0) error[0] = v4;
      if (threadIdx.x == 0) p1[0] = v8;
      float v10 = v9 / v8;
      if (threadIdx.x == 0) p3[0] = v10;
    }
    __syncthreads();
    {
      float *const p0 = g3;
      float *const p1 = g4;
      int64_t *const p2 = g0;
      float *const p3 = (float *)(scratch + 0);
      float *const p4 = g5;
      float *const p5 = g6;
      float v9 = p3[0];
      float v10 = 1.0f / v9;
      for (int i0 = 0; i0 < 33; i0++) {
        float v2 = p1[i0];
        int64_t v6 = p2[i0];
        int v8 = v6 != (-100L);
        float v11 = v8 ? v10 : 0.0f;
        float v12 = -v11;
        float v14 = p4[i0];
        float v15 = v11 / v14;
        for (int i1 = threadIdx.x; i1 < 10; i1 += blockDim.x) {
          float v1 = p0[i0 * 10 + i1];
          float v3 = v1 - v2;
          float v4 = exp_f32(v3);
          int32_t v5 = (int32_t)(i1);
          int v7 = v5 == v6;
          float v13 = v7 ? v12 : 0.0f;
          float v16 = v15 * v4;
          float v17 = v13 + v16;
          p5[i0 * 10 + i1] = v17;
        }
      }
    }
    __syncthreads();
  }
}

// kernel_0<<<33, 32>>>(input 0, arena 0, arena 192, input 1, arena 384)
// kernel_1<<<1, 64>>>(arena 384, arena 576)
// kernel_2<<<1, 32>>>(input 1, arena 576, output 0, input 0, arena 0, arena 192, output 1)
