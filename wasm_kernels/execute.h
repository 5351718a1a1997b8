// Between the executor and the threads.
#pragma once
#include "ops.h"

#define COUNTERS 64u
// Units taken of the work of record i, in counter i % COUNTERS: so many records never run without a barrier between.
extern uint32_t taken[COUNTERS];

// Thread tid of n plays records [first, last). 1, or 0 when a thread did not arrive at a barrier.
int execute(uint32_t ops, uint32_t first, uint32_t last, uint32_t state, uint32_t tid, uint32_t n);

// Wait until all n threads are here: 1, or 0 when one did not come in time, after which no barrier works any more. The
// memory in `ahead` (or 0) is brought into this core's cache as long as there is time, and taken off `ahead`.
int barrier(uint32_t tid, uint32_t n, Ahead *ahead);
