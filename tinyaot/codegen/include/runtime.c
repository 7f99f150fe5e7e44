/* The runtime that compiled steps share: one pool of threads, random bits, and a table that leads to
   them and to the products, which are objects of their own. */
#define _GNU_SOURCE
#include "runtime.h"
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "philox.h"

/* ---- the pool -----------------------------------------------------------------------------------
   Workers wait for the next job, and threads for each other at barriers: spinning briefly, then
   asleep, so that a busy machine loses microseconds and not time slices. */
#define MAX_THREADS 64
#define SPINS 4000

static pthread_mutex_t one_job = PTHREAD_MUTEX_INITIALIZER; /* one parallel region at a time */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t woken = PTHREAD_COND_INITIALIZER;
static atomic_int job, arrived, phase, sleepers;
static int started, active;
static void (*volatile body)(void *, int);
static void *volatile frame;
static volatile int spins = SPINS;

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

/* Wait until *word differs from `old`. */
static void await(atomic_int *word, int old) {
  for (int i = 0; i < spins; i++) {
    if (atomic_load_explicit(word, memory_order_acquire) != old) return;
    relax();
  }
  pthread_mutex_lock(&lock);
  atomic_fetch_add(&sleepers, 1);
  while (atomic_load(word) == old) pthread_cond_wait(&woken, &lock);
  atomic_fetch_sub(&sleepers, 1);
  pthread_mutex_unlock(&lock);
}

/* Add one to *word, and wake who sleeps on it. */
static void announce(atomic_int *word) {
  atomic_fetch_add(word, 1);
  if (atomic_load(&sleepers)) {
    pthread_mutex_lock(&lock);
    pthread_cond_broadcast(&woken);
    pthread_mutex_unlock(&lock);
  }
}

static void barrier(void) {
  int now = atomic_load(&phase);
  if (atomic_fetch_add(&arrived, 1) == active - 1) {
    atomic_store(&arrived, 0);
    announce(&phase);
  } else
    await(&phase, now);
}

static void *worker(void *number) {
  int me = (int)(intptr_t)number, seen = 0;
  for (;;) {
    await(&job, seen);
    seen = atomic_load(&job);
    if (me < active) {
      body(frame, me);
      barrier();
    }
  }
  return 0;
}

static void after_fork(void) { /* a child has no workers */
  started = 0;
  atomic_store(&job, 0);
  atomic_store(&arrived, 0);
  atomic_store(&sleepers, 0);
  pthread_mutex_init(&one_job, 0);
  pthread_mutex_init(&lock, 0);
  pthread_cond_init(&woken, 0);
}

static void parallel(void (*fn)(void *, int), void *data, int threads) {
  if (threads <= 1) {
    fn(data, 0);
    return;
  }
  pthread_mutex_lock(&one_job);
  if (!started) {
    pthread_atfork(0, 0, after_fork);
    started = 1;
  }
  for (; started < threads; started++) {
    pthread_t thread;
    /* a worker that comes late finds the job number changed, and joins */
    pthread_create(&thread, 0, worker, (void *)(intptr_t)started);
    pthread_detach(thread);
  }
  body = fn;
  frame = data;
  active = threads;
  announce(&job);
  fn(data, 0);
  barrier();
  pthread_mutex_unlock(&one_job);
}

static struct tinyaot_runtime runtime = {0, 0, parallel, barrier, random_row};

const struct tinyaot_runtime *tinyaot_runtime(int cores) {
  spins = cores > 1 ? SPINS : 0;
  return &runtime;
}

/* A product for elements of so many bytes. */
void tinyaot_provide(int itemsize, void *product) {
  if (itemsize == 4)
    runtime.gemm_f32 = product;
  else
    runtime.gemm_f64 = product;
}

/* A call by arrays: each object's first word behind its header, of `header` bytes, is the address of
   its data, as NumPy's C interface promises. */
struct call {
  int (*step)(void **pointers);
  int64_t header, arrays;
  char **objects;
  void **pointers;
};

int tinyaot_call(const struct call *c) {
  for (int64_t i = 0; i < c->arrays; i++) c->pointers[i] = *(void **)(c->objects[i] + c->header);
  return c->step(c->pointers);
}

/* A step that does nothing, to time the rest of a call. */
int tinyaot_nothing(void **pointers) {
  (void)pointers;
  return 0;
}
