/* What root may change: settings of a GPU, and whether it is there at all. */
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
SETTER(nvmlDeviceSetAccountingMode, "accounting_mode", "accounting_mode", 1)
SETTER(nvmlDeviceSetEccMode, "ecc.pending", "ecc.pending", 1)

API int nvmlDeviceClearAccountingPids(const Handle *device)
{
    ABOUT_GPU(device);
    return allowed(&at, "accounting_mode", true);
}

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

/* Locked clocks can be set and taken away, and never be asked for: only the state file shows them. */
static int lock(const At *at, const char *key, u32 low, u32 high)
{
    int refused = allowed(at, key, low <= high);
    return refused ? refused : change(at, key, "%u %u", low, high);
}

static int unlock(const At *at, const char *key)
{
    int refused = allowed(at, key, true);
    return refused ? refused : change(at, key, "none");
}

API int nvmlDeviceSetGpuLockedClocks(const Handle *device, u32 low, u32 high)
{
    ABOUT_GPU(device);
    return lock(&at, "clock.locked.gpu", low, high);
}

API int nvmlDeviceResetGpuLockedClocks(const Handle *device)
{
    ABOUT_GPU(device);
    return unlock(&at, "clock.locked.gpu");
}

API int nvmlDeviceSetMemoryLockedClocks(const Handle *device, u32 low, u32 high)
{
    ABOUT_GPU(device);
    return lock(&at, "clock.locked.memory", low, high);
}

API int nvmlDeviceResetMemoryLockedClocks(const Handle *device)
{
    ABOUT_GPU(device);
    return unlock(&at, "clock.locked.memory");
}

API int nvmlDeviceClearEccErrorCounts(const Handle *device, u32 counter)
{
    ABOUT_GPU(device);
    char key[KEY];
    int refused = allowed(&at, "ecc.total.0.0", counter <= 1);
    for (u32 error = 0; !refused && error <= 1; error++) {
        snprintf(key, sizeof key, "ecc.total.%u.%u", error, counter);
        refused = change(&at, key, "0");
    }
    return refused;
}

/* --- taking a GPU away, and finding it again --------------------------------------------------------------------- */

static int on_the_bus(const Pci *pci, bool also_absent)
{
    u32 found[3];
    for (int gpu = gpus(); gpu-- > 0;) {
        const char *where = state_text("gpu.%d.pci", gpu);
        if (where && sscanf(where, "%x:%x:%x", found, found + 1, found + 2) == 3 && found[0] == pci->domain &&
            found[1] == pci->bus && found[2] == pci->device && (also_absent || present(gpu)))
            return gpu;
    }
    return -1;
}

static int about_pci(At *at, const Pci *pci, bool also_absent)
{
    NEEDS(pci);
    if (privileged() != OK)
        return NO_PERMISSION;
    at->gpu = on_the_bus(pci, also_absent);
    return at->gpu < 0 ? NOT_FOUND : trouble(at);
}

static bool busy(const At *at)
{
    static const char *const kinds[] = {"compute", "graphics", "mps"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const char *list = told(at, "processes.%s", kinds[i]);
        if (list && *list)
            return true;
    }
    return number(at, "persistence_mode") != 0;
}

API int nvmlDeviceQueryDrainState(const Pci *pci, u32 *out)
{
    ABOUT_MACHINE();
    if (!pci || !out)
        return INVALID_ARGUMENT;
    at.gpu = on_the_bus(pci, false);
    *out = at.gpu < 0 ? 0 : (u32)number(&at, "drained");
    return at.gpu < 0 ? NOT_FOUND : trouble(&at);
}

API int nvmlDeviceModifyDrainState(const Pci *pci, u32 wanted)
{
    ABOUT_MACHINE();
    int refused = about_pci(&at, pci, false);
    if (refused)
        return refused;
    return wanted && number(&at, "persistence_mode") ? IN_USE : change(&at, "drained", "%u", wanted);
}

API int nvmlDeviceRemoveGpu(const Pci *pci)
{
    ABOUT_MACHINE();
    int refused = about_pci(&at, pci, false);
    if (refused)
        return refused;
    return busy(&at) || !number(&at, "drained") ? IN_USE : change(&at, "absent", "1");
}

API int nvmlDeviceDiscoverGpus(const Pci *pci)
{
    ABOUT_MACHINE();
    int refused = about_pci(&at, pci, true);
    if (refused)
        return refused;
    int code = change(&at, "absent", "0");
    return code ? code : change(&at, "drained", "0");
}
