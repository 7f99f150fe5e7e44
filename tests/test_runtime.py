"""The pool of threads: every share of every level once, level after level, whoever comes or not."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest

from tinyaot.backends import cpu
from tinyaot.backends.toolchain import FUSED, build

pytestmark = pytest.mark.skipif(cpu.unavailable() is not None, reason="no C compiler")
# What a driver of the pool starts with: a job that notes its shares in order, and looks whether all
# shares of the level before are finished.
NOTES = """
enum { LEVELS = 5, MOST = 8 };
struct notes {
  int shares, wrong, at[LEVELS * MOST];
  atomic_int count, over[LEVELS];
};
static void note(void *frame, int level, int share) {
  struct notes *n = frame;
  if (level && atomic_load(&n->over[level - 1]) != n->shares) n->wrong = 1;
  n->at[atomic_fetch_add(&n->count, 1)] = level * n->shares + share;
  atomic_fetch_add(&n->over[level], 1);
}
/* Whether all shares were run once; if nobody else came, also in order. */
static int is_done(const struct notes *n, int alone) {
  char seen[LEVELS * MOST] = {0};
  if (n->wrong || n->count != LEVELS * n->shares) return 0;
  for (int i = 0; i < n->count; i++)
    if (seen[n->at[i]]++ || (alone && n->at[i] != i)) return 0;
  return 1;
}
static int job_of(int shares, int alone) {
  struct notes n = {shares};
  parallel(note, &n, LEVELS, shares);
  return is_done(&n, alone);
}
"""


# The system refuses a process its first threads.
ONCE_ALONE = """
#define _GNU_SOURCE
#include <pthread.h>
#include <unistd.h>
static int parent;
static int refuse(pthread_t *t, void *a, void *(*f)(void *), void *x) {
  if (!parent) parent = getpid();
  return getpid() == parent ? 11 : pthread_create(t, a, f, x);
}
#define pthread_create(t, a, f, x) refuse(t, a, f, x)
"""


def driver(text: str, before: str = "") -> Callable[[], int]:
    """`int tinyaot_test(void)` of C text that follows the pool's."""
    folder = Path(str(resources.files("tinyaot.codegen") / "include"))
    source = before + (folder / "runtime.c").read_text() + NOTES + text
    made = ctypes.CDLL(str(build(source, FUSED, folder))).tinyaot_test
    made.restype, made.argtypes = ctypes.c_int, []
    return made  # type: ignore[no-any-return]


@pytest.mark.parametrize("answer", [0, 11])
def test_the_caller_finishes_alone(answer: int) -> None:
    """Workers that never run, or that the system refuses (EAGAIN)."""
    before = f"""
#define _GNU_SOURCE
#include <pthread.h>
static int none(pthread_t *t, void *a, void *(*f)(void *), void *x) {{
  *t = pthread_self();
  return {answer};
}}
#define pthread_create(t, a, f, x) none(t, a, f, x)
#define pthread_detach(t) (void)(t)
"""
    text = """
int tinyaot_test(void) {
  for (int shares = 1; shares <= MOST; shares++)
    if (!job_of(shares, 1)) return shares;
  work(1); /* a worker that comes when all is over */
  return !job_of(3, 1);
}"""
    assert driver(text, before)() == 0


def test_a_child_leaves_the_job_that_its_parent_is_at() -> None:
    """The system forks where shares of a job are not begun: they are not the child's, whose own
    jobs have workers of their own."""
    text = """
#include <sys/wait.h>
#include <unistd.h>
static int child, status = -1;
static void fork_at(void *frame, int level, int share) {
  note(frame, level, share);
  if (level != 2 || share != 0 || status != -1) return;
  child = fork();
  if (child) {
    waitpid(child, &status, 0);
    return;
  }
  struct notes *n = frame;
  alarm(20);
  int count = n->count;
  work(1); /* as a worker does that has just begun */
  int fine = n->count == count;
  for (int i = 0; i < 50; i++) fine &= job_of(1 + i % MOST, 0);
  _exit(!fine);
}
int tinyaot_test(void) {
  struct notes n = {3};
  parallel(fork_at, &n, LEVELS, 3);
  return status || !is_done(&n, 1);
}"""
    assert driver(text, ONCE_ALONE)() == 0


def test_users_share_one_pool() -> None:
    text = """
static void *user(void *wrong) {
  for (int i = 0; i < 300; i++)
    if (!job_of(1 + i % MOST, 0)) atomic_store((atomic_int *)wrong, 1);
  return 0;
}
int tinyaot_test(void) {
  atomic_int wrong = 0;
  pthread_t users[3];
  for (int i = 0; i < 3; i++) pthread_create(&users[i], 0, user, &wrong);
  for (int i = 0; i < 3; i++) pthread_join(users[i], 0);
  return wrong;
}"""
    assert driver(text)() == 0
