/* What root may change: the settings of a GPU. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "session.h"

enum { GRAPHICS = 0, SM = 1, MEMORY = 2 };

/* One change, written at once. A setting that is told to be stubborn takes nothing, and says that all is well. */
static int change(const At *at, const char *key, const char *format, ...)
{
    char whole[KEY], value[KEY];
    va_list rest;
    va_start(rest, format);
    vsnprintf(value, sizeof value, format, rest);
    va_end(rest);
    if (state_says("gpu.%d.stubborn.%s", at->gpu, key))
        return OK;
    if (!edit_begin())
        return OPERATING_SYSTEM;
    snprintf(whole, sizeof whole, "gpu.%d.%s", at->gpu, key);
    edit_set(whole, value);
    return edit_end();
}

static int allowed(const At *at, const char *key, bool valid)
{
    if (privileged() != OK)
        return NO_PERMISSION;
    if (key && !told(at, "%s", key))
        return NOT_SUPPORTED;
    return valid ? OK : INVALID_ARGUMENT;
}

#define SETTER(symbol, key, asked, highest)                                                                            \
    API int symbol(const Handle *device, u32 wanted)                                                                   \
    {                                                                                                                  \
        ABOUT_GPU(device);                                                                                             \
        int refused = allowed(&at, asked, wanted <= highest);                                                          \
        return refused ? refused : change(&at, key, "%u", wanted);                                                     \
    }

SETTER(nvmlDeviceSetPersistenceMode, "persistence_mode", "persistence_mode", 1)
SETTER(nvmlDeviceSetComputeMode, "compute_mode", "compute_mode", 3)
SETTER(nvmlDeviceSetEccMode, "ecc.pending", "ecc.pending", 1)

API int nvmlDeviceSetPowerManagementLimit(const Handle *device, u32 milliwatts)
{
    ABOUT_GPU(device);
    bool valid = milliwatts >= number(&at, "power.min") && milliwatts <= number(&at, "power.max");
    int refused = allowed(&at, "power.limit", valid);
    return refused ? refused : change(&at, "power.limit", "%u", milliwatts);
}

static int set_clocks(const At *at, u64 memory, u64 graphics)
{
    int code = change(at, "clock.app.2", "%llu", memory);
    if (code == OK)
        code = change(at, "clock.app.1", "%llu", graphics);
    return code ? code : change(at, "clock.app.0", "%llu", graphics);
}

API int nvmlDeviceSetApplicationsClocks(const Handle *device, u32 memory, u32 graphics)
{
    ABOUT_GPU(device);
    bool valid = memory <= number(&at, "clock.max.2") && graphics <= number(&at, "clock.max.0");
    int refused = allowed(&at, "clock.app.0", valid);
    return refused ? refused : set_clocks(&at, memory, graphics);
}

API int nvmlDeviceResetApplicationsClocks(const Handle *device)
{
    ABOUT_GPU(device);
    int refused = allowed(&at, "clock.app_default.0", true);
    return refused ? refused : set_clocks(&at, number(&at, "clock.app_default.2"), number(&at, "clock.app_default.0"));
}

/* The stand-in never answers what a clock is locked to: only the state file shows it. */
static int unlock(const At *at, const char *key)
{
    int refused = allowed(at, key, true);
    return refused ? refused : change(at, key, "none");
}

API int nvmlDeviceResetGpuLockedClocks(const Handle *device)
{
    ABOUT_GPU(device);
    return unlock(&at, "clock.locked.gpu");
}

API int nvmlDeviceResetMemoryLockedClocks(const Handle *device)
{
    ABOUT_GPU(device);
    return unlock(&at, "clock.locked.memory");
}
