// Where the threads of a job wait for each other, between records.
#pragma once
#include "ops.h"

#define COUNTERS 64u
// Units taken of the work of record i, in counter i % COUNTERS: so many records never run without a barrier between.
extern uint32_t taken[COUNTERS];

// Wait until all n threads are here: 1, or 0 when one did not come in time, after which no barrier works any more. The
// memory in `ahead` (or 0) is brought into this core's cache as long as there is time, and taken off `ahead`.
int barrier(uint32_t tid, uint32_t n, Ahead *ahead);

#ifdef __wasm_atomics__

// Whether a thread did not arrive at some barrier.
int barrier_broken(void);

#define LINE 64u  // bytes of a cache line

// A word that threads spin on, on a cache line of its own.
typedef struct {
  _Alignas(LINE) _Atomic uint32_t value;
} Word;

// Wake all threads that wait for word to change.
void wake(Word *word);

// Until word is no longer `old`: spins, then sleeps. 0 after timeout_ns (-1: never).
int wait_while(Word *word, uint32_t old, uint32_t spins, int64_t timeout_ns);

#endif
