// Memory that a thread uses within one op, for itself.
#pragma once
#include "ops.h"

#define MAX_COLUMNS 32768u        // of a weight: what REPACK's scratch holds
#define SCRATCH_BYTES (1u << 20)  // a thread's: a panel of MAX_COLUMNS bf16

// SCRATCH_BYTES that only this thread uses, within one op.
void *thread_scratch(Thread th);
