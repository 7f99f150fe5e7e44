// Runs CUDA C++ kernels on one CPU thread, to compare values where there is no GPU.
//
// Every thread of a block is a context with a stack of its own; a block runs from barrier to
// barrier, so a run is deterministic. The order of threads, warps and blocks is the caller's
// choice: a missing barrier gives other values in another order. Threads that wait at different
// barriers, or that have left when others wait, are an error and not a hang.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))

struct Index { unsigned x, y, z; };
static Index threadIdx, blockIdx, blockDim, gridDim;

namespace host {
enum State { RUNS, AT_EXCHANGE, AT_BARRIER, DONE };
enum Order { FORWARD, REVERSED, SHUFFLED };
const unsigned WARP = 32;
const int STACK = 64 << 10;

struct Thread {
  ucontext_t context;
  std::vector<char> stack;
  State state;
  int line, vote, turn;
};
static std::vector<Thread> threads;
static uint64_t slots[1024][2];
static ucontext_t scheduler;
static void (*body)();
static int order, any_vote;
static uint32_t seed;

static unsigned random_below(unsigned n) {
  seed = seed * 1664525u + 1013904223u;
  return seed / 65536u % n;
}

static void wait_as(State state, int line) {
  Thread &me = threads[threadIdx.x];
  me.state = state, me.line = line;
  swapcontext(&me.context, &scheduler);
}

static int barrier(int line, int vote) {
  threads[threadIdx.x].vote = vote;
  wait_as(AT_BARRIER, line);
  return any_vote;
}

template <class T> static T exchange(int line, T mine, int apart) {
  unsigned me = threadIdx.x;
  int turn = threads[me].turn ^= 1;
  uint64_t bits = 0;
  memcpy(&bits, &mine, sizeof mine);
  slots[me][turn] = bits;
  wait_as(AT_EXCHANGE, line);
  memcpy(&mine, &slots[me ^ apart][turn], sizeof mine);
  return mine;
}

static void entry() {
  body();
  wait_as(DONE, 0);
}

static std::vector<unsigned> sequence(unsigned first, unsigned last) {
  std::vector<unsigned> found;
  for (unsigned i = first; i < last; i++) found.push_back(i);
  if (order == REVERSED) std::reverse(found.begin(), found.end());
  for (unsigned i = found.size(); order == SHUFFLED && i > 1; i--)
    std::swap(found[i - 1], found[random_below(i)]);
  return found;
}

// Until every lane is at a barrier or done.
static const char *run_warp(unsigned first, unsigned last) {
  for (;;) {
    for (unsigned i : sequence(first, last))
      if (threads[i].state == RUNS) {
        threadIdx = {i, 0, 0};
        swapcontext(&scheduler, &threads[i].context);
      }
    unsigned waiting = 0;
    for (unsigned i = first; i < last; i++) waiting += threads[i].state == AT_EXCHANGE;
    if (!waiting) return 0;
    for (unsigned i = first; i < last; i++) {
      if (waiting != WARP || threads[i].line != threads[first].line)
        return "an exchange that not all lanes of a warp reach";
      threads[i].state = RUNS;
    }
  }
}

static const char *run_block() {
  unsigned n = blockDim.x;
  for (unsigned i = 0; i < n; i++) {
    Thread &t = threads[i];
    t.state = RUNS, t.turn = 0;
    getcontext(&t.context);
    t.stack.resize(STACK);
    t.context.uc_stack.ss_sp = t.stack.data(), t.context.uc_stack.ss_size = STACK;
    t.context.uc_link = 0;
    makecontext(&t.context, entry, 0);
  }
  for (;;) {
    for (unsigned w : sequence(0, (n + WARP - 1) / WARP))
      if (const char *error = run_warp(w * WARP, std::min(w * WARP + WARP, n))) return error;
    unsigned done = 0;
    any_vote = 0;
    for (const Thread &t : threads) done += t.state == DONE, any_vote |= t.vote;
    if (done == n) return 0;
    for (unsigned i = 0; i < n; i++) {
      if (done || threads[i].line != threads[0].line) return "a barrier that not all threads reach";
      threads[i].state = RUNS, threads[i].vote = 0;
    }
  }
}

template <class... A> struct Call {
  static inline void (*kernel)(A...);
  static inline void **arguments;
  template <size_t... I> static void go(std::index_sequence<I...>) {
    kernel(*(A *)arguments[I]...);
  }
  static void run() { go(std::index_sequence_for<A...>{}); }
};

template <class... A>
static const char *launch(void (*kernel)(A...), unsigned blocks, unsigned count, int how,
                          void **arguments) {
  Call<A...>::kernel = kernel, Call<A...>::arguments = arguments;
  body = Call<A...>::run, order = how, seed = 1;
  gridDim = {blocks, 1, 1}, blockDim = {count, 1, 1};
  threads.resize(count);
  for (unsigned b : sequence(0, blocks)) {
    blockIdx = {b, 0, 0};
    if (const char *error = run_block()) return error;
  }
  return 0;
}
}  // namespace host

#define __syncthreads() host::barrier(__LINE__, 0)
#define __syncthreads_or(vote) host::barrier(__LINE__, vote)
#define __shfl_xor_sync(mask, mine, apart) host::exchange(__LINE__, mine, apart)
#define EXPORT(kernel)                                                                             \
  extern "C" const char *run_##kernel(unsigned blocks, unsigned count, int how, void **given) {    \
    return host::launch(kernel, blocks, count, how, given);                                        \
  }
