#include "scratch.h"

static _Alignas(64) uint8_t scratch[MAX_THREADS][SCRATCH_BYTES];

void *thread_scratch(Thread th) { return scratch[th.tid]; }
