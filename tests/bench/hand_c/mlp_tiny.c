/* The whole `mlp_tiny` step: SGD folded into the weight-gradient products. */
#include "gemm.h"
#include "vmath.h"
#define B 32
#define I 64
#define H 128
#define O 10
static float h[B * H], z[B * O], dh[B * H], scratch[GEMM_SCRATCH] __attribute__((aligned(64)));

float step(const float *restrict x, const long *restrict y, float *restrict w0, float *restrict b0,
           float *restrict w1, float *restrict b1) {
  const float lr = 0.1f;
  float loss = 0;
  gemm(0, 0, B, H, I, x, I, w0, H, h, H, 0, scratch);
  for (int r = 0; r < B; r++)
    for (int c = 0; c < H; c++) {
      float v = h[r * H + c] + b0[c];
      h[r * H + c] = v > 0 ? v : 0;
    }
  gemm(0, 0, B, O, H, h, H, w1, O, z, O, 0, scratch);
  for (int r = 0; r < B; r++) {
    float *q = z + r * O, top = -3e38f, sum = 0;
    for (int c = 0; c < O; c++) {
      q[c] += b1[c];
      top = q[c] > top ? q[c] : top;
    }
    float own = q[y[r]] - top;
    for (int c = 0; c < O; c++) {
      q[c] = v_exp(q[c] - top);
      sum += q[c];
    }
    loss += logf(sum) - own;
    for (int c = 0; c < O; c++) q[c] *= -lr / (B * sum);
    q[y[r]] += lr / B;
  }
  gemm(0, 1, B, H, O, z, O, w1, O, dh, H, 0, scratch); /* -lr dL/dh, before w1 moves */
  for (int k = 0; k < B * H; k++) dh[k] = h[k] > 0 ? dh[k] : 0;
  gemm(1, 0, H, O, B, h, H, z, O, w1, O, 1, scratch);
  gemm(1, 0, I, H, B, x, I, dh, H, w0, H, 1, scratch);
  for (int r = 0; r < B; r++) {
    for (int c = 0; c < O; c++) b1[c] += z[r * O + c];
    for (int c = 0; c < H; c++) b0[c] += dh[r * H + c];
  }
  return loss / B;
}
