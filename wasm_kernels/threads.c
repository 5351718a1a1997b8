// Threads: one instance of the module in each worker, all on one shared memory. Thread 0 publishes a job and takes part
// in it; the others wait for jobs in thread_main. In a build without shared memory there is only thread 0.
#include "barrier.h"
#include "execute.h"

#define STACK_BYTES 65536u

static _Alignas(64) uint8_t stacks[MAX_THREADS][STACK_BYTES];

// Where thread tid's stack begins (it grows down): set __stack_pointer to it before any other call.
EXPORT(stack_top) uint32_t stack_top(uint32_t tid) { return (uint32_t)stacks[tid] + STACK_BYTES; }

#ifdef __wasm_atomics__

static Word current;  // the job's number * JOB_STEP + its threads; the threads wait for it to change
static Word stopping;
static struct {
  uint32_t ops, first, last, state;
} job;
#define JOB_STEP 32u
_Static_assert(MAX_THREADS < JOB_STEP, "a job's threads do not fit beside its number");

// How often to look for a job before sleeping. A look takes about a nanosecond: the threads stay awake for some 2 ms,
// the time that Python takes between tokens and more.
static uint32_t job_spins = 1500000;

// Thread 0: play records [first, last) on n threads. 0 when all have, 1 when a thread did not arrive.
EXPORT(dispatch) int dispatch(uint32_t ops, uint32_t first, uint32_t last, uint32_t state, uint32_t n) {
  if (n == 1) return !execute(ops, first, last, state, 0, 1);
  job.ops = ops, job.first = first, job.last = last, job.state = state;
  current.value = current.value / JOB_STEP * JOB_STEP + JOB_STEP + n;
  wake(&current);
  return !(execute(ops, first, last, state, 0, n) && barrier(0, n, 0));
}

// Thread tid > 0: plays jobs until stop_threads.
EXPORT(thread_main) void thread_main(uint32_t tid) {
  for (uint32_t seen = 0; !stopping.value && !barrier_broken();) {
    wait_while(&current, seen, job_spins, -1);
    seen = current.value;
    const uint32_t n = seen % JOB_STEP;
    if (stopping.value || tid >= n) continue;  // the job may change under a thread that has no part in it
    if (!execute(job.ops, job.first, job.last, job.state, tid, n) || !barrier(tid, n, 0)) return;
  }
}

// Make every thread_main return.
EXPORT(stop_threads) void stop_threads(void) {
  stopping.value = 1;
  current.value += JOB_STEP;
  wake(&current);
}

#else

EXPORT(dispatch) int dispatch(uint32_t ops, uint32_t first, uint32_t last, uint32_t state, uint32_t n) {
  return n != 1 || !execute(ops, first, last, state, 0, 1);
}

#endif
