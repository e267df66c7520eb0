/* A call: who may ask, what about, and which fault was ordered for it. */
#ifndef SESSION_H
#define SESSION_H

#include <stdbool.h>
#include <stddef.h>

#include "abi.h"
#include "state.h"

typedef enum { GPU, SLICE, GPU_INSTANCE, COMPUTE_INSTANCE } Kind;

/* What a caller holds. Worth nothing after the session in which it was given. */
typedef struct Handle Handle;

/* What a call is about: the number of a GPU in the state, and of a part of it. -1: none. */
typedef struct {
    const char *call;
    int gpu, slice, gi, ci;
    bool inside; /* holds the turn, until the call returns */
} At;

enum { ANY_DEVICE = 1 << GPU | 1 << SLICE, NOTHING = 0, OPENING = -1, CLOSING = -2 };

int enter(At *at, const char *call, const Handle *about, int kinds);
void leave(At *at);

#define OPENED(about, kinds)                                                                                           \
    At at __attribute__((cleanup(leave))) = {0};                                                                       \
    do {                                                                                                               \
        int refused = enter(&at, __func__, about, kinds);                                                              \
        if (refused)                                                                                                   \
            return refused;                                                                                            \
    } while (0)

#define ABOUT(device) OPENED(device, ANY_DEVICE)
#define ABOUT_GPU(device) OPENED(device, 1 << GPU)
#define ABOUT_MACHINE() OPENED(NULL, NOTHING)

#define NEEDS(argument)                                                                                                \
    if (!(argument))                                                                                                   \
    return INVALID_ARGUMENT

Handle *handle_of(Kind kind, int gpu, int slice, int gi, int ci);
void pause_turn(void); /* let others call, and wait a moment */
void set_up(int gpu);  /* at the first handle of a session */
void open_nodes(void); /* of all GPUs, until the end of the session */
void capability_shown(const At *at, int ci); /* at->gi is there now, or that part of it; ci -1: none */
int gpus(void);        /* how many numbers the state has, the absent ones included */
bool present(int gpu);
int find_gpu(const Handle *device);       /* -1: not there any more */
int find_pci(const char *bus_id);         /* -1: nowhere, or absent */
int trouble(const At *at);                /* the fault ordered for this call about this GPU */
int privileged(void);                     /* OK or NO_PERMISSION */

/* What the state says of what a call is about: of a slice itself, else of the GPU instance it is a part of. */
const char *told(const At *at, const char *format, ...) __attribute__((format(printf, 2, 3)));
int get_u32(const At *at, u32 *out, const char *format, ...) __attribute__((format(printf, 3, 4)));
int get_u64(const At *at, u64 *out, const char *format, ...) __attribute__((format(printf, 3, 4)));
int get_text(const At *at, char *out, size_t size, const char *key);
const char *next_process(const char *list, Process *out); /* where the list goes on; NULL: it has none */
u64 number(const At *at, const char *key); /* 0 where nothing is told */

#endif
