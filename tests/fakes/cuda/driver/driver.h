/* A stand-in for the driver of CUDA: what its parts share. The numbers are those of NVIDIA's documented driver API.
 *
 * Which GPUs there are, and what is wrong with them, is in the file of the stand-in for NVML (state.h there), so that the
 * two agree. A process sees the GPU or the slice that CUDA_VISIBLE_DEVICES names. Keys of a GPU, after gpu.G.cuda:
 *
 * memory                  the file that is its memory; without one CUDA does not show it. A slice: gpu.G.mig.S.cuda.memory
 * units, capability       multiprocessors; such as 9.0
 * attribute.N             an attribute of the device
 * shown, shown_uuid, shown_pci   how many devices CUDA shows, and which one in place of this one
 * fail.CALL               a status, and from which call of that name on; hang.CALL: it blocks as long as this file is there
 * fails_at, fails_with    a launch such as "write 3", or "allocate 2", and its status. All later calls answer it too
 * stops_at, stop          it goes no further than this launch, and says so in this named pipe
 * dies_at, dies_of        the process ends there by this signal
 * taken_at                a launch, and how many bytes another process takes then
 * fails_after             allocations that succeed; the next one answers 700
 * stuck                   OFFSET:BITS ... that are always set; lazy: nothing is written
 * clears                  OFFSET:SIZE ... that are zero in memory that is handed out; without it nothing is cleared
 * pinned                  a file that keeps pinned memory of the host; without one that is zero when it is handed out
 * pinned_clears           OFFSET:SIZE ... of this file, as above
 * clears_late             memory that is handed out stays as it was until the first launch over it has ended: then it is zero,
 *                         beside what that launch has written
 * shared                  a file that keeps the shared memory of the units; without one each process finds zeros there
 * aliases                 OFFSET:OFFSET ... of 4 KiB each: the first answers with the cells of the second, from the context on
 * deviating, leaky, unreached   units that compute something else, do not hold what is written, or run no block
 * names_reserved, counts_reserved, refuses_size_with   how the shared memory of the system counts: see kernels.c
 * refuses_limits          limits of the context that it refuses
 *
 * Of a GPU itself: claims (who has how much memory, see claims.c), device_file, open_ms, compute_mode,
 * load (which stays at 100 if a process dies inside a launch, until the next context; as reported of Blackwell).
 */
#ifndef DRIVER_H
#define DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "state.h"

enum {
    CUDA_OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    DEVICE_UNAVAILABLE = 46,
    NO_DEVICE = 100,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    FILE_NOT_FOUND = 301,
    INVALID_HANDLE = 400,
    NAME_NOT_FOUND = 500,
    ILLEGAL_ADDRESS = 700,
    TOO_MANY_RESOURCES = 701,
    LAUNCH_FAILED = 719,
};

enum { PAGE = 1 << 21, SHARED_OF_UNIT = 228 * 1024, SHARED_OF_BLOCK = 227 * 1024, SHARED_OF_SYSTEM = 1024 };

/* --- faults.c: the device that this process sees, and what was ordered of it --- */
bool device_found(void);
int device_number(void);
const char *device_uuid(void);                                                       /* as CUDA shows it */
const char *device_says(const char *format, ...) __attribute__((format(printf, 1, 2))); /* NULL: nothing */
bool device_lists(const char *key, u32 number);                                      /* in "1 2 3" */

typedef struct {
    bool inside;
} Turn;

int enter(Turn *turn, const char *call); /* the status that was ordered for this call */
void leave(Turn *turn);
void forget_calls(void);
int moment(const char *what);            /* a launch of this kernel, or "allocate": its ordered end, or its status */
int broken(int status);                  /* all later calls answer this; returns it */
int failed(void);                        /* that status; CUDA_OK if there is none */
bool current(void);                      /* this thread has the context */
void set_current(bool);

#define CALL()                                                                                                         \
    Turn turn __attribute__((cleanup(leave))) = {0};                                                                   \
    do {                                                                                                               \
        int refused = enter(&turn, __func__);                                                                          \
        if (refused)                                                                                                   \
            return refused;                                                                                            \
    } while (0)

#define CALL_IN_CONTEXT()                                                                                              \
    CALL();                                                                                                            \
    if (!current())                                                                                                    \
    return INVALID_CONTEXT

#define REFUSE_UNLESS(condition)                                                                                       \
    if (!(condition))                                                                                                  \
    return INVALID_VALUE

/* --- memory.c --- */
static const u64 BASE __attribute__((unused)) = 1ull << 40; /* of all addresses: none is small by accident */
int take(u64 size, u64 *address);
int give_back(u64 address);
void report_load(const char *percent);     /* of a GPU that says its load: what it stays at */
int claim_as(const char *name, u64 bytes); /* for as long as this process lives */
bool has_gap(u64 size);
void press_stuck_bits(void);
void clear_late(u64 address, u64 size, bool written); /* after a launch over this */
bool inside_memory(u64 address, u64 size);
void forget_memory(void);

/* --- addresses.c --- */
bool inside_mapping(u64 address, u64 size);
void forget_mappings(void);

/* --- kernels.c --- */
struct timespec;
int wait_for(const struct timespec *event); /* NULL: for all that was launched; the status of that */
void put_event(struct timespec *event);      /* its time comes when all that was launched before has ended */
void forget_kernels(void);

#endif
