// Threads: one instance of the module in each worker, all on one shared memory. Thread 0 publishes a job and takes part
// in it; the others wait for jobs in thread_main. In a build without shared memory there is only thread 0.
#include "execute.h"

#define EXPORT(name) __attribute__((export_name(#name)))
#define STACK_BYTES 65536u

static _Alignas(64) uint8_t stacks[MAX_THREADS][STACK_BYTES];

// Where thread tid's stack begins (it grows down): set __stack_pointer to it before any other call.
EXPORT(stack_top) uint32_t stack_top(uint32_t tid) { return (uint32_t)stacks[tid] + STACK_BYTES; }

#ifdef __wasm_atomics__

#define TIMEOUT_NS 10000000000ll  // a thread that takes longer to arrive counts as dead

#define LINE 64u  // bytes of a cache line

// A word that threads spin on, on a cache line of its own.
typedef struct {
  _Alignas(LINE) _Atomic uint32_t value;
} Word;

static Word current;        // the job's number * JOB_STEP + its threads; the threads wait for it to change
static Word arrived, turn;  // barrier: threads that are here; counts barriers passed
static Word broken;         // a thread did not arrive: no barrier works any more
static Word stopping;
static struct {
  uint32_t ops, first, last, state;
} job;
#define JOB_STEP 32u
_Static_assert(MAX_THREADS < JOB_STEP, "a job's threads do not fit beside its number");

// How often to look before sleeping. A look takes about a nanosecond: a job's threads stay awake for some 2 ms, the
// time that Python takes between tokens and more; at a barrier it is the price of one sleep.
static uint32_t job_spins = 1500000, barrier_spins = 100000;

static int wait(Word *word, uint32_t old, int64_t timeout_ns) {
  return __builtin_wasm_memory_atomic_wait32((int *)&word->value, (int)old, timeout_ns);
}

static void wake(Word *word) { __builtin_wasm_memory_atomic_notify((int *)&word->value, 0xffffffffu); }

// Until word is no longer `old`: spins, then sleeps. 0 after timeout_ns (-1: never).
static int wait_while(Word *word, uint32_t old, uint32_t spins, int64_t timeout_ns) {
  for (uint32_t i = 0; i < spins; i++) {
    if (word->value != old) return 1;
  }
  while (word->value == old) {
    if (wait(word, old, timeout_ns) == 2) return word->value != old;
  }
  return 1;
}

// Read one byte of every cache line of `ahead` until it ends or word is no longer `old`. There is no instruction to
// prefetch; a core goes on while its loads are under way.
static void read_ahead(Ahead *ahead, const Word *word, uint32_t old) {
  while (ahead->at + 4 * LINE <= ahead->end && word->value == old) {
    for (uint32_t i = 0; i < 4; i++) (void)*(const volatile uint8_t *)(ahead->at + i * LINE);
    ahead->at += 4 * LINE;
  }
}

int barrier(uint32_t tid, uint32_t n, Ahead *ahead) {
  const uint32_t now = turn.value;
  if (broken.value) return 0;
  if (++arrived.value == n) {
    arrived.value = 0;
    __builtin_memset(taken, 0, sizeof taken);
    turn.value = now + 1;
    wake(&turn);
    return 1;
  }
  if (ahead) read_ahead(ahead, &turn, now);
  if (!wait_while(&turn, now, barrier_spins, tid == 0 ? TIMEOUT_NS : -1)) {
    broken.value = 1;
    turn.value = now + 1;
    wake(&turn);
  }
  return !broken.value;
}

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
  for (uint32_t seen = 0; !stopping.value && !broken.value;) {
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

int barrier(uint32_t tid, uint32_t n, Ahead *ahead) {
  (void)tid, (void)ahead;
  return n == 1;
}

EXPORT(dispatch) int dispatch(uint32_t ops, uint32_t first, uint32_t last, uint32_t state, uint32_t n) {
  return n != 1 || !execute(ops, first, last, state, 0, 1);
}

#endif
