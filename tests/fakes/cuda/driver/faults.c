/* Which device this process sees, and what a test has ordered of it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"

enum { PAUSE_NS = 3 * 1000 * 1000, MOST = 64, LONGEST = 48 };

typedef struct {
    char name[LONGEST];
    int times;
} Count;

static pthread_mutex_t turns = PTHREAD_MUTEX_INITIALIZER;
static Count calls[MOST], moments[MOST];
static int answers_only; /* the status of a launch that failed */
static _Thread_local bool mine;

static int times(Count *counts, const char *name)
{
    for (int i = 0; i < MOST; i++) {
        if (!*counts[i].name)
            snprintf(counts[i].name, LONGEST, "%s", name);
        if (strcmp(counts[i].name, name) == 0)
            return ++counts[i].times;
    }
    abort();
}

/* --- the device --------------------------------------------------------------------------------------------------- */

static bool place(int *gpu, int *slice)
{
    const char *wanted = getenv("CUDA_VISIBLE_DEVICES"), *uuid;
    for (*gpu = 0; wanted && (uuid = state_text("gpu.%d.uuid", *gpu)); ++*gpu) {
        if (state_says("gpu.%d.absent", *gpu) || state_says("gpu.%d.lost", *gpu))
            continue;
        *slice = -1;
        if (strcmp(uuid, wanted) == 0)
            return true;
        for (*slice = 0; *slice < 8; ++*slice)
            if ((uuid = state_text("gpu.%d.mig.%d.uuid", *gpu, *slice)) && strcmp(uuid, wanted) == 0)
                return true;
    }
    return false;
}

const char *device_says(const char *format, ...)
{
    char key[KEY];
    int gpu, slice;
    va_list rest;
    va_start(rest, format);
    vsnprintf(key, sizeof key, format, rest);
    va_end(rest);
    if (!place(&gpu, &slice))
        return NULL;
    const char *own = slice < 0 ? NULL : state_text("gpu.%d.mig.%d.cuda.%s", gpu, slice, key);
    return own || (slice >= 0 && strcmp(key, "memory") == 0) ? own : state_text("gpu.%d.cuda.%s", gpu, key);
}

bool device_found(void) { return device_says("memory") != NULL; }

int device_number(void)
{
    int gpu, slice;
    return place(&gpu, &slice) ? gpu : -1;
}

const char *device_uuid(void)
{
    const char *other = device_says("shown_uuid");
    return other ? other : getenv("CUDA_VISIBLE_DEVICES");
}

bool device_lists(const char *key, u32 number)
{
    char *end = NULL;
    for (const char *next = device_says("%s", key); next && *next; next = end) {
        u32 one = strtoul(next, &end, 10);
        if (end == next)
            return false;
        if (one == number)
            return true;
    }
    return false;
}

/* --- one call ----------------------------------------------------------------------------------------------------- */

bool current(void) { return mine; }

void set_current(bool now) { mine = now; }

int broken(int status) { return answers_only = status; }

int failed(void) { return answers_only; }

void forget_calls(void)
{
    memset(calls, 0, sizeof calls);
    memset(moments, 0, sizeof moments);
    answers_only = CUDA_OK;
    mine = false;
}

static bool hangs(const char *call)
{
    const char *file = device_says("hang.%s", call);
    return file && access(file, F_OK) == 0;
}

int enter(Turn *turn, const char *call)
{
    pthread_mutex_lock(&turns);
    turn->inside = true;
    int time = times(calls, call), status = 0, first = 1;
    state_refresh();
    while (hangs(call)) {
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        state_refresh();
    }
    const char *order = device_says("fail.%s", call);
    if (order && sscanf(order, "%d %d", &status, &first) >= 1 && time >= first)
        return status;
    return answers_only;
}

void leave(Turn *turn)
{
    if (turn->inside)
        pthread_mutex_unlock(&turns);
}

/* --- one launch --------------------------------------------------------------------------------------------------- */

static bool ordered(const char *key, const char *what, int time, u64 *more)
{
    char name[LONGEST];
    int wanted;
    const char *order = device_says("%s", key);
    return order && sscanf(order, "%47s %d %llu", name, &wanted, more) >= 2 && strcmp(name, what) == 0 &&
           wanted == time;
}

static void stop(void)
{
    const char *pipe = device_says("stop");
    int end = pipe ? open(pipe, O_RDWR | O_CLOEXEC) : -1; /* open for as long as this process lives */
    if (end < 0 || write(end, "!", 1) != 1)
        abort();
    for (;;)
        pause();
}

int moment(const char *what)
{
    int time = times(moments, what);
    u64 more = 0;
    if (ordered("stops_at", what, time, &more))
        stop();
    if (ordered("dies_at", what, time, &more)) {
        report_load("100");
        const char *signal = device_says("dies_of");
        kill(getpid(), signal ? atoi(signal) : SIGSEGV);
        for (;;)
            pause();
    }
    if (ordered("taken_at", what, time, &more))
        claim_as("somebody", more);
    if (ordered("fails_at", what, time, &more)) {
        const char *status = device_says("fails_with");
        return status ? atoi(status) : LAUNCH_FAILED;
    }
    return CUDA_OK;
}
