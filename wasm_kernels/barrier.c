#include "barrier.h"

_Alignas(64) uint32_t taken[COUNTERS];

#ifdef __wasm_atomics__

#define TIMEOUT_NS 10000000000ll  // a thread that takes longer to arrive counts as dead

static Word arrived, turn;  // threads that are here; counts barriers passed
static Word broken;         // a thread did not arrive: no barrier works any more

// How often to look before sleeping. A look takes about a nanosecond: here it is the price of one sleep.
static uint32_t barrier_spins = 100000;

static int wait(Word *word, uint32_t old, int64_t timeout_ns) {
  return __builtin_wasm_memory_atomic_wait32((int *)&word->value, (int)old, timeout_ns);
}

void wake(Word *word) { __builtin_wasm_memory_atomic_notify((int *)&word->value, 0xffffffffu); }

int wait_while(Word *word, uint32_t old, uint32_t spins, int64_t timeout_ns) {
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

int barrier_broken(void) { return broken.value != 0; }

#else

int barrier(uint32_t tid, uint32_t n, Ahead *ahead) {
  (void)tid, (void)ahead;
  return n == 1;
}

#endif
