/* How a kernel is launched on the emulated GPU: for C, C++ and, by the same fields, Python. */
#ifndef LAUNCH_H
#define LAUNCH_H

#include <stdint.h>

/* Bits that change by themselves, in one block: before its barrier of that number in the word of that place (SHARED),
 * or in the n-th result of that kind in the thread of that place. See emulation.h. The place EACH | n is every 16th thread
 * from the n-th on, and the moment is later by one in each next thread. */
#define EACH 0x80000000u

typedef struct {
    uint32_t where, block, moment, place, flip;
} Fault;

typedef struct {
    uint32_t grid, block, shared_bytes, units, leftovers;
    uint32_t first_block, first_unit; /* those before that block count as run; what the units are numbered from */
    Fault fault;
    const uint32_t *unit_of_block; /* on which unit each block runs; NULL: on each in turn */
} Launch;

enum { DONE, TRAPPED, NO_KERNEL };

#endif
