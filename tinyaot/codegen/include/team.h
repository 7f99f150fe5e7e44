/* CUDA: what the threads of a block do together. */

#define FOLD(name, result)                                                                         \
  struct name##_of {                                                                               \
    template <class T> __device__ T operator()(T a, T b) const { return result; }                  \
  };
FOLD(sum, a + b) FOLD(prod, a * b) FOLD(amax, a > b ? a : b) FOLD(amin, a < b ? a : b)

/* Every thread's value folded into one, which all get: within each warp as a tree of exchanges,
   then over the warps in order. The order never changes, so neither do the bits. */
template <class T, class F> static __device__ T fold_team(T mine, F fold) {
  __shared__ T warps[32];
  for (int apart = 16; apart > 0; apart /= 2)
    mine = fold(mine, (T)__shfl_xor_sync(0xffffffffu, mine, apart));
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = mine;
  __syncthreads();
  T all = warps[0];
  for (int i = 1; i < (int)blockDim.x / 32; i++) all = fold(all, warps[i]);
  __syncthreads();
  return all;
}
