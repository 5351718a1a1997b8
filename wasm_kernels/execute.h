// Playing a program's records.
#pragma once
#include <stdint.h>

#define EXPORT(name) __attribute__((export_name(#name)))

// Thread tid of n plays records [first, last). 1, or 0 when a thread did not arrive at a barrier.
int execute(uint32_t ops, uint32_t first, uint32_t last, uint32_t state, uint32_t tid, uint32_t n);
