/* The runtime that compiled steps share: one pool of threads, random bits, and a table that leads
   to them and to the products, which are objects of their own. */
#define _GNU_SOURCE
#include "runtime.h"
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "blocks.h"
#include "philox.h"

#define GET(x) atomic_load_explicit(&(x), memory_order_acquire)
#define SET(x, value) atomic_store_explicit(&(x), value, memory_order_release)

/* ---- the pool -----------------------------------------------------------------------------------
   A job is levels, one after another, each of as many shares as threads are wanted. A thread runs
   its own share of a level, then takes over what others have not begun: who is asleep, or waits for
   a core, holds nobody up, and the caller finishes alone if nobody comes. What counts here only
   grows. A level of one job is a stage; stages are numbered through all jobs, and whoever raises
   the number of a share from the stage before has begun it. So a worker that comes late finds
   nothing to begin in an old job, and goes on to the newest.

   Threads wait spinning briefly, then asleep: a busy machine costs microseconds, not time
   slices. */
#define MAX_SHARES 1024
#define SPINS 4000
#define LINE _Alignas(64)

typedef _Atomic uint64_t counter;

static struct {
  LINE counter stage; /* the last of which this share was begun */
} begun[MAX_SHARES];
static LINE counter finished; /* shares, of all stages */
static LINE counter newest;   /* the last stage of the newest job, told when the job is written */
static struct {
  LINE _Atomic(tinyaot_level) run;
  _Atomic(void *) frame;
  atomic_int levels, shares;
  counter finished; /* what it was before this job */
} job;

static pthread_mutex_t one_job = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t woken = PTHREAD_COND_INITIALIZER;
static pthread_once_t prepared = PTHREAD_ONCE_INIT;
static atomic_int sleepers, spins = SPINS;
static int workers;

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

/* Wait until *count is `least` or more. */
static void await(counter *count, uint64_t least) {
  for (int i = spins; i >= 0; i--) {
    if (GET(*count) >= least) return;
    relax();
  }
  pthread_mutex_lock(&lock);
  atomic_fetch_add(&sleepers, 1);
  while (atomic_load(count) < least) pthread_cond_wait(&woken, &lock);
  atomic_fetch_sub(&sleepers, 1);
  pthread_mutex_unlock(&lock);
}

/* Wake who sleeps, after a count has changed. */
static void wake(void) {
  if (!atomic_load(&sleepers)) return;
  pthread_mutex_lock(&lock);
  pthread_cond_broadcast(&woken);
  pthread_mutex_unlock(&lock);
}

static int begin(int share, uint64_t stage) {
  uint64_t before = stage - 1;
  return GET(begun[share].stage) == before &&
         atomic_compare_exchange_strong(&begun[share].stage, &before, stage);
}

/* Run shares of the newest job until all are finished, as the thread whose own is `mine`; the job's
   last stage. The next job may be written while this one's words are read, but only after all of
   this one was begun: whatever mixture that gives, its stages cannot begin. */
static uint64_t work(int mine) {
  uint64_t last = GET(newest), all = GET(job.finished);
  tinyaot_level run = GET(job.run);
  void *frame = GET(job.frame);
  int levels = GET(job.levels), shares = GET(job.shares);
  if (mine >= shares) return last;
  for (int level = 0; level < levels; level++) {
    all += shares;
    for (int i = 0; i < shares; i++) {
      int share = (mine + i) % shares;
      if (!begin(share, last - levels + level + 1)) continue;
      run(frame, level, share);
      if (atomic_fetch_add(&finished, 1) + 1 == all) wake();
    }
    await(&finished, all);
  }
  return last;
}

static void *worker(void *number) {
  for (uint64_t seen = 0;;) {
    await(&newest, seen + 1);
    seen = work((int)(intptr_t)number);
  }
  return 0;
}

/* A child has no workers, and no job, though there may have been one. */
static void after_fork(void) {
  workers = 0;
  SET(job.shares, 0);
  atomic_store(&sleepers, 0);
  pthread_mutex_init(&one_job, 0);
  pthread_mutex_init(&lock, 0);
  pthread_cond_init(&woken, 0);
}

static void prepare(void) { pthread_atfork(0, 0, after_fork); }

static void parallel(tinyaot_level run, void *frame, int levels, int shares) {
  if (shares == 1 || shares > MAX_SHARES) {
    for (int level = 0; level < levels; level++)
      for (int share = 0; share < shares; share++) run(frame, level, share);
    return;
  }
  pthread_once(&prepared, prepare);
  pthread_mutex_lock(&one_job);
  for (pthread_t thread; workers < shares - 1; workers++) {
    if (pthread_create(&thread, 0, worker, (void *)(intptr_t)(workers + 1))) break;
    pthread_detach(thread);
  }
  /* Shares that the jobs before did not have are brought to the stage before this job's: first of
     all, so that whoever reads a word of this job finds them there. */
  uint64_t last = GET(newest);
  for (int share = 0; share < shares; share++) SET(begun[share].stage, last);
  SET(job.finished, GET(finished));
  SET(job.run, run);
  SET(job.frame, frame);
  SET(job.levels, levels);
  SET(job.shares, shares);
  atomic_store(&newest, last + levels);
  wake();
  work(0);
  pthread_mutex_unlock(&one_job);
}

static struct tinyaot_runtime runtime = {.parallel = parallel, .random_row = random_row};

const struct tinyaot_runtime *tinyaot_runtime(int cores) {
  atomic_store(&spins, cores > 1 ? SPINS : 0);
  return &runtime;
}

/* A product for elements of so many bytes. */
void tinyaot_provide(int itemsize, void *product, void *panels) {
  if (itemsize == 4)
    runtime.gemm_f32 = product, runtime.panels_f32 = panels;
  else
    runtime.gemm_f64 = product, runtime.panels_f64 = panels;
}

int64_t tinyaot_pack_bytes(int itemsize, int64_t m, int64_t n, int64_t k, int64_t a_col, int exact,
                           int ready) {
  return pack_bytes(itemsize, m, n, k, a_col, exact, ready);
}

#include "call.h"
