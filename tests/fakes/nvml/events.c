/* Events: "event.N = UUID TYPE DATA GI CI" in the state. Only what comes after a registration is told. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "session.h"

enum { MAX_REGISTERED = 64 };

typedef struct Set {
    struct { const Handle *device; u64 types; } registered[MAX_REGISTERED];
    int count;
    unsigned next; /* the number of the first event that is news, as of the first registration */
    struct Set *other;
} Set;

static Set *sets;

static unsigned number_of_events(void)
{
    unsigned number = 0;
    while (state_text("event.%u", number))
        number++;
    return number;
}

static Set **place_of(const Set *set)
{
    Set **place = &sets;
    while (*place && *place != set)
        place = &(*place)->other;
    return place;
}

API int nvmlEventSetCreate(Set **out)
{
    ABOUT_MACHINE();
    NEEDS(out);
    Set *set = calloc(1, sizeof *set);
    if (!set)
        abort();
    set->other = sets;
    *out = sets = set;
    return OK;
}

API int nvmlEventSetFree(Set *set)
{
    ABOUT_MACHINE();
    Set **place = place_of(set);
    NEEDS(*place);
    *place = set->other;
    free(set);
    return OK;
}

API int nvmlDeviceRegisterEvents(const Handle *device, u64 types, Set *set)
{
    ABOUT_GPU(device);
    u64 supported = 0;
    if (!*place_of(set) || set->count == MAX_REGISTERED)
        return INVALID_ARGUMENT;
    if (get_u64(&at, &supported, "event_types") != OK || types & ~supported)
        return NOT_SUPPORTED;
    if (!set->count)
        set->next = number_of_events();
    set->registered[set->count].device = device;
    set->registered[set->count++].types = types;
    return OK;
}

static bool wanted(const Set *set, EventData *event, const char *uuid)
{
    for (int i = 0; i < set->count; i++) {
        int gpu = find_gpu(set->registered[i].device);
        const char *own = gpu < 0 ? NULL : state_text("gpu.%d.uuid", gpu);
        if (own && strcmp(own, uuid) == 0 && set->registered[i].types & event->type) {
            event->device = handle_of(GPU, gpu, -1, -1, -1);
            return true;
        }
    }
    return false;
}

static bool news(Set *set, EventData *out)
{
    const char *text;
    char uuid[96];
    while ((text = state_text("event.%u", set->next))) {
        set->next++;
        *out = (EventData){.gi = ~0u, .ci = ~0u};
        if (sscanf(text, "%95s %llu %llu %u %u", uuid, &out->type, &out->data, &out->gi, &out->ci) >= 3 &&
            wanted(set, out, uuid))
            return true;
    }
    return false;
}

static bool lost(const Set *set)
{
    for (int i = 0; i < set->count; i++) {
        int gpu = find_gpu(set->registered[i].device);
        if (gpu < 0 || state_says("gpu.%d.lost", gpu))
            return true;
    }
    return false;
}

static long long milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000ll + now.tv_nsec / 1000000;
}

API int nvmlEventSetWait_v2(Set *set, EventData *out, u32 timeout)
{
    ABOUT_MACHINE();
    long long ends = milliseconds() + timeout;
    for (;; pause_turn(), state_refresh()) {
        if (!*place_of(set) || !out)
            return INVALID_ARGUMENT;
        if (news(set, out))
            return OK;
        if (lost(set))
            return GPU_IS_LOST;
        if (milliseconds() >= ends)
            return TIMED_OUT;
    }
}
