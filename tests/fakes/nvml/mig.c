/* MIG: GPU instances (memory of their own), compute instances in them (a part that can be used), and their devices.
 *
 * gpu.G.profile.P.*   what a GPU can be cut into; P is NVML's number of the profile, .id the one it is made by
 * gpu.G.gi.I.*        a GPU instance: .profile (P), .start, .size, .memory.*
 * gpu.G.mig.S.*       a compute instance: .uuid, .gi, .ci, .profile; S is the number of its device
 */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "session.h"

enum { SLOTS = 8, INSTANCES = 15, GI_PROFILES = 18, CI_PROFILES = 9, MEBIBYTE = 1 << 20 };

static u32 value_of(const char *text) { return text ? (u32)strtoul(text, NULL, 0) : 0; }

static bool mig_on(const At *at) { return value_of(state_text("gpu.%d.mig_mode.current", at->gpu)) == 1; }

static void put(const char *value, const char *format, ...)
{
    char key[KEY];
    va_list rest;
    va_start(rest, format);
    vsnprintf(key, sizeof key, format, rest);
    va_end(rest);
    edit_set(key, value);
}

static void put_number(u64 value, const char *format, ...)
{
    char key[KEY], text[24];
    va_list rest;
    va_start(rest, format);
    vsnprintf(key, sizeof key, format, rest);
    va_end(rest);
    snprintf(text, sizeof text, "%llu", value);
    edit_set(key, text);
}

/* --- the mode ---------------------------------------------------------------------------------------------------- */

static bool cut(const At *at)
{
    for (int gi = 0; gi < INSTANCES; gi++)
        if (state_text("gpu.%d.gi.%d.profile", at->gpu, gi))
            return true;
    return false;
}

static bool used(const At *at, int gi, int ci)
{
    static const char *const kinds[] = {"compute", "graphics", "mps"};
    Process user;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const char *next = state_text("gpu.%d.processes.%s", at->gpu, kinds[i]);
        while (next && (next = next_process(next, &user)))
            if (gi < 0 || (user.gi == (u32)gi && (ci < 0 || user.ci == (u32)ci)))
                return true;
    }
    return false;
}

/* Newer GPUs change at once, unless somebody is on them; older ones with the next reset. */
API int nvmlDeviceSetMigMode(const Handle *device, u32 mode, u32 *activation)
{
    ABOUT_GPU(device);
    NEEDS(activation);
    if (privileged() != OK)
        return NO_PERMISSION;
    if (!told(&at, "mig_mode.current"))
        return NOT_SUPPORTED;
    if (mode > 1)
        return INVALID_ARGUMENT;
    if (!mode && cut(&at))
        return IN_USE;
    *activation = used(&at, -1, -1) ? IN_USE : number(&at, "mig_mode.by_reset") ? RESET_REQUIRED : OK;
    bool at_once = *activation == OK;
    if (!edit_begin())
        return OPERATING_SYSTEM;
    put_number(mode, "gpu.%d.mig_mode.pending", at.gpu);
    if (at_once)
        put_number(mode, "gpu.%d.mig_mode.current", at.gpu);
    return edit_end();
}

/* --- devices ----------------------------------------------------------------------------------------------------- */

API int nvmlDeviceGetMigDeviceHandleByIndex(const Handle *device, u32 index, Handle **out)
{
    ABOUT_GPU(device);
    NEEDS(out);
    if (!mig_on(&at))
        return NOT_FOUND; // go-nvlib asks every GPU, and goes on after this answer only
    if (index >= SLOTS)
        return INVALID_ARGUMENT;
    if (!state_text("gpu.%d.mig.%u.uuid", at.gpu, index))
        return NOT_FOUND;
    *out = handle_of(SLICE, at.gpu, (int)index, -1, -1);
    return OK;
}

#define OF_SLICE(symbol, part)                                                                                         \
    API int symbol(const Handle *device, u32 *out)                                                                     \
    {                                                                                                                  \
        ABOUT(device);                                                                                                 \
        NEEDS(out);                                                                                                    \
        *out = (u32)at.part;                                                                                           \
        return at.slice >= 0 ? OK : NOT_SUPPORTED;                                                                     \
    }

OF_SLICE(nvmlDeviceGetGpuInstanceId, gi)
OF_SLICE(nvmlDeviceGetComputeInstanceId, ci)

API int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(const Handle *device, Handle **out)
{
    ABOUT(device);
    if (at.slice < 0 || !out)
        return INVALID_ARGUMENT;
    *out = handle_of(GPU, at.gpu, -1, -1, -1);
    return OK;
}

static u32 of_profile(const At *at, u32 profile, const char *what)
{
    return value_of(state_text("gpu.%d.profile.%u.%s", at->gpu, profile, what));
}

/* --- profiles of GPU instances ----------------------------------------------------------------------------------- */

static GiProfile profile_of(const At *at, u32 profile)
{
    return (GiProfile){
        .id = of_profile(at, profile, "id"),
        .slices = of_profile(at, profile, "slices"),
        .instances = of_profile(at, profile, "instances"),
        .multiprocessors = of_profile(at, profile, "multiprocessors"),
        .copy_engines = of_profile(at, profile, "copy_engines"),
        .decoders = of_profile(at, profile, "decoders"),
        .jpegs = of_profile(at, profile, "jpegs"),
        .ofas = of_profile(at, profile, "ofas"),
        .memory_mb = of_profile(at, profile, "memory_mb"),
    };
}

static int profile_known(const At *at, u32 profile)
{
    if (profile >= GI_PROFILES)
        return INVALID_ARGUMENT;
    return mig_on(at) && state_text("gpu.%d.profile.%u.id", at->gpu, profile) ? OK : NOT_SUPPORTED;
}

API int nvmlDeviceGetGpuInstanceProfileInfo(const Handle *device, u32 profile, GiProfile *out)
{
    ABOUT_GPU(device);
    NEEDS(out);
    int unknown = profile_known(&at, profile);
    if (!unknown)
        *out = profile_of(&at, profile);
    return unknown;
}

API int nvmlDeviceGetGpuInstanceProfileInfoV(const Handle *device, u32 profile, GiProfileV2 *out)
{
    ABOUT_GPU(device);
    NEEDS(out);
    if (out->version != VERSION(GiProfileV2, 2))
        return VERSION_MISMATCH;
    int unknown = profile_known(&at, profile);
    if (unknown)
        return unknown;
    GiProfile old = profile_of(&at, profile);
    memcpy(&out->id, &old, offsetof(GiProfile, memory_mb)); /* the same numbers in the same order */
    out->memory_mb = old.memory_mb;
    snprintf(out->name, sizeof out->name, "MIG %s", state_text("gpu.%d.profile.%u.name", at.gpu, profile));
    return OK;
}

static int profile_by_id(const At *at, u32 id)
{
    for (int profile = 0; profile < GI_PROFILES; profile++) {
        const char *own = state_text("gpu.%d.profile.%d.id", at->gpu, profile);
        if (own && value_of(own) == id)
            return profile;
    }
    return -1;
}

/* --- GPU instances ----------------------------------------------------------------------------------------------- */

static bool starts_at(const At *at, u32 profile, u32 start)
{
    const char *next = state_text("gpu.%d.profile.%u.starts", at->gpu, profile);
    for (; next && *next; next = *next ? next + strspn(next, " ") : next) {
        char *end;
        if (strtoul(next, &end, 10) == start)
            return true;
        next = end;
    }
    return false;
}

static bool free_between(const At *at, u32 start, u32 size)
{
    for (int gi = 0; gi < INSTANCES; gi++) {
        if (!state_text("gpu.%d.gi.%d.profile", at->gpu, gi))
            continue;
        u32 other = value_of(state_text("gpu.%d.gi.%d.start", at->gpu, gi));
        u32 width = value_of(state_text("gpu.%d.gi.%d.size", at->gpu, gi));
        if (start < other + width && other < start + size)
            return false;
    }
    return true;
}

/* The place decides on the number, as on hardware: the whole is 0, its halves 1 and 2, then the quarters ... */
static int gi_at(u32 start, u32 size)
{
    u32 pieces = 8 / (size ? size : 8);
    return (int)(pieces - 1 + start / (8 / pieces));
}

API int nvmlDeviceGetGpuInstances(const Handle *device, u32 id, Handle **out, u32 *count)
{
    ABOUT_GPU(device);
    int profile = profile_by_id(&at, id);
    if (profile < 0 || !out || !count)
        return INVALID_ARGUMENT;
    if (!mig_on(&at))
        return NOT_SUPPORTED;
    *count = 0;
    for (int gi = 0; gi < INSTANCES; gi++) {
        const char *own = state_text("gpu.%d.gi.%d.profile", at.gpu, gi);
        if (own && atoi(own) == profile)
            out[(*count)++] = handle_of(GPU_INSTANCE, at.gpu, -1, gi, -1);
    }
    return OK;
}

API int nvmlDeviceGetGpuInstanceById(const Handle *device, u32 gi, Handle **out)
{
    ABOUT_GPU(device);
    NEEDS(out);
    if (!state_text("gpu.%d.gi.%u.profile", at.gpu, gi))
        return NOT_FOUND;
    *out = handle_of(GPU_INSTANCE, at.gpu, -1, (int)gi, -1);
    return OK;
}

API int nvmlGpuInstanceGetInfo(const Handle *instance, GiInfo *out)
{
    OPENED(instance, 1 << GPU_INSTANCE);
    NEEDS(out);
    *out = (GiInfo){
        .device = handle_of(GPU, at.gpu, -1, -1, -1),
        .id = (u32)at.gi,
        .profile = of_profile(&at, (u32)number(&at, "profile"), "id"),
        .placement = {(u32)number(&at, "start"), (u32)number(&at, "size")},
    };
    return OK;
}

static int create(const At *at, u32 profile, u32 start, Handle **out)
{
    u32 size = of_profile(at, profile, "size");
    u64 memory = (u64)of_profile(at, profile, "memory_mb") * MEBIBYTE;
    int gi = gi_at(start, size);
    if (!edit_begin())
        return OPERATING_SYSTEM;
    put_number(profile, "gpu.%d.gi.%d.profile", at->gpu, gi);
    put_number(start, "gpu.%d.gi.%d.start", at->gpu, gi);
    put_number(size, "gpu.%d.gi.%d.size", at->gpu, gi);
    put_number(memory, "gpu.%d.gi.%d.memory.total", at->gpu, gi);
    put("0", "gpu.%d.gi.%d.memory.used", at->gpu, gi);
    int code = edit_end();
    state_refresh();
    capability_shown(&(At){.gpu = at->gpu, .gi = gi}, -1);
    *out = handle_of(GPU_INSTANCE, at->gpu, -1, gi, -1);
    return code;
}

static int create_between(const At *at, u32 id, u32 first, u32 last, Handle **out)
{
    int profile = profile_by_id(at, id);
    if (privileged() != OK)
        return NO_PERMISSION;
    if (!mig_on(at))
        return NOT_SUPPORTED;
    if (profile < 0 || !out)
        return INVALID_ARGUMENT;
    u32 size = of_profile(at, (u32)profile, "size");
    for (u32 start = first; start <= last; start++)
        if (starts_at(at, (u32)profile, start) && free_between(at, start, size))
            return create(at, (u32)profile, start, out);
    return INSUFFICIENT_RESOURCES;
}

API int nvmlDeviceCreateGpuInstanceWithPlacement(const Handle *device, u32 id, const Placement *placement, Handle **out)
{
    ABOUT_GPU(device);
    NEEDS(placement);
    return create_between(&at, id, placement->start, placement->start, out);
}

static int slot_of(const At *at, int ci)
{
    for (int slot = 0; slot < SLOTS; slot++) {
        const char *gi = state_text("gpu.%d.mig.%d.gi", at->gpu, slot);
        if (gi && atoi(gi) == at->gi && (ci < 0 || atoi(state_text("gpu.%d.mig.%d.ci", at->gpu, slot)) == ci))
            return slot;
    }
    return -1;
}

/* --- compute instances ------------------------------------------------------------------------------------------- */

static const u32 ci_slices[CI_PROFILES] = {1, 2, 3, 4, 7, 8, 6, 1, 7};

static int ci_profile_known(const At *at, u32 profile)
{
    if (profile >= CI_PROFILES)
        return INVALID_ARGUMENT;
    u32 whole = of_profile(at, (u32)number(at, "profile"), "slices");
    return ci_slices[profile] > whole || profile >= 5 ? NOT_SUPPORTED : OK; /* the later ones are for other GPUs */
}

API int nvmlGpuInstanceGetComputeInstanceById(const Handle *instance, u32 ci, Handle **out)
{
    OPENED(instance, 1 << GPU_INSTANCE);
    NEEDS(out);
    if (slot_of(&at, (int)ci) < 0)
        return NOT_FOUND;
    *out = handle_of(COMPUTE_INSTANCE, at.gpu, -1, at.gi, (int)ci);
    return OK;
}

static u32 start_of(const At *at, int slot)
{
    return value_of(state_text("gpu.%d.mig.%d.start", at->gpu, slot));
}

API int nvmlComputeInstanceGetInfo_v2(const Handle *instance, CiInfo *out)
{
    OPENED(instance, 1 << COMPUTE_INSTANCE);
    NEEDS(out);
    int slot = slot_of(&at, at.ci);
    *out = (CiInfo){
        .device = handle_of(GPU, at.gpu, -1, -1, -1),
        .instance = handle_of(GPU_INSTANCE, at.gpu, -1, at.gi, -1),
        .id = (u32)at.ci,
        .profile = value_of(state_text("gpu.%d.mig.%d.profile", at.gpu, slot)),
        .placement = {start_of(&at, slot), value_of(state_text("gpu.%d.mig.%d.slices", at.gpu, slot))},
    };
    return OK;
}

/* As on hardware, the same GPU and the same numbers give the same UUID; machine.py computes it too. */
static u64 mixed(u64 seed, const char *text)
{
    for (; *text; text++)
        seed = (seed ^ (unsigned char)*text) * 0x100000001b3ull;
    return seed;
}

static void uuid_of(const At *at, int ci, char *out, size_t size)
{
    char name[KEY];
    const char *salt = state_text("gpu.%d.mig_salt", at->gpu);
    snprintf(name, sizeof name, "%s/%d/%d/%s", state_text("gpu.%d.uuid", at->gpu), at->gi, ci, salt ? salt : "");
    u64 high = mixed(0xcbf29ce484222325ull, name), low = mixed(high, name);
    snprintf(out, size, "MIG-%08llx-%04llx-%04llx-%04llx-%012llx", high >> 32, high >> 16 & 0xffff, high & 0xffff,
             low >> 48, low & 0xffffffffffffull);
}

static int free_slot(const At *at)
{
    int slot = 0;
    while (slot < SLOTS && state_text("gpu.%d.mig.%d.uuid", at->gpu, slot))
        slot++;
    return slot < SLOTS ? slot : -1;
}

static bool ci_fits(const At *at, u32 start, u32 slices)
{
    if (start + slices > of_profile(at, (u32)number(at, "profile"), "slices"))
        return false;
    for (int slot = 0; slot < SLOTS; slot++) {
        const char *gi = state_text("gpu.%d.mig.%d.gi", at->gpu, slot);
        u32 other = start_of(at, slot), width = value_of(state_text("gpu.%d.mig.%d.slices", at->gpu, slot));
        if (gi && atoi(gi) == at->gi && start < other + width && other < start + slices)
            return false;
    }
    return true;
}

static int write_ci(const At *at, u32 profile, u32 start, int ci, int slot)
{
    char uuid[96], name[KEY];
    uuid_of(at, ci, uuid, sizeof uuid);
    snprintf(name, sizeof name, "%s MIG %s", state_text("gpu.%d.name", at->gpu),
             state_text("gpu.%d.profile.%u.name", at->gpu, (u32)number(at, "profile")));
    if (!edit_begin())
        return OPERATING_SYSTEM;
    put(uuid, "gpu.%d.mig.%d.uuid", at->gpu, slot);
    put(name, "gpu.%d.mig.%d.name", at->gpu, slot);
    put_number((u32)at->gi, "gpu.%d.mig.%d.gi", at->gpu, slot);
    put_number((u32)ci, "gpu.%d.mig.%d.ci", at->gpu, slot);
    put_number(profile, "gpu.%d.mig.%d.profile", at->gpu, slot);
    put_number(start, "gpu.%d.mig.%d.start", at->gpu, slot);
    put_number(ci_slices[profile], "gpu.%d.mig.%d.slices", at->gpu, slot);
    return edit_end();
}

static int create_ci(const At *at, u32 profile, u32 first, u32 last, Handle **out)
{
    NEEDS(out);
    if (privileged() != OK)
        return NO_PERMISSION;
    int refused = ci_profile_known(at, profile);
    u32 start = first;
    while (!refused && start <= last && !ci_fits(at, start, ci_slices[profile]))
        start++;
    int slot = free_slot(at), ci = 0;
    while (slot_of(at, ci) >= 0)
        ci++;
    if (refused || start > last || slot < 0)
        return refused ? refused : INSUFFICIENT_RESOURCES;
    refused = write_ci(at, profile, start, ci, slot);
    state_refresh();
    capability_shown(at, ci);
    *out = handle_of(COMPUTE_INSTANCE, at->gpu, -1, at->gi, ci);
    return refused;
}

API int nvmlGpuInstanceCreateComputeInstanceWithPlacement(const Handle *instance, u32 profile,
                                                          const Placement *placement, Handle **out)
{
    OPENED(instance, 1 << GPU_INSTANCE);
    NEEDS(placement);
    return create_ci(&at, profile, placement->start, placement->start, out);
}
