/* What the machine and its devices tell. A key that the state does not have is not supported. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "clock.h"
#include "session.h"

enum { MAX_FIELDS = 1024, UNSIGNED = 1, LONG = 3 };

#define NOT_KNOWN 0xffffffffu

/* --- the machine ------------------------------------------------------------------------------------------------- */

#define MACHINE_TEXT(symbol, key)                                                                                      \
    API int symbol(char *out, u32 size)                                                                                \
    {                                                                                                                  \
        ABOUT_MACHINE();                                                                                               \
        const char *value = state_find(key);                                                                           \
        if (!value)                                                                                                    \
            return NOT_SUPPORTED;                                                                                      \
        if (strlen(value) >= size)                                                                                     \
            return INSUFFICIENT_SIZE;                                                                                  \
        strcpy(out, value);                                                                                            \
        return OK;                                                                                                     \
    }

MACHINE_TEXT(nvmlSystemGetDriverVersion, "driver_version")
MACHINE_TEXT(nvmlSystemGetNVMLVersion, "nvml_version")

#define MACHINE_NUMBER(symbol, key)                                                                                    \
    API int symbol(int *out)                                                                                           \
    {                                                                                                                  \
        ABOUT_MACHINE();                                                                                               \
        NEEDS(out);                                                                                                    \
        const char *value = state_find(key);                                                                           \
        *out = value ? atoi(value) : 0;                                                                                \
        return value ? OK : NOT_SUPPORTED;                                                                             \
    }

MACHINE_NUMBER(nvmlSystemGetCudaDriverVersion, "cuda_version")
MACHINE_NUMBER(nvmlSystemGetCudaDriverVersion_v2, "cuda_version")

/* The texts that pynvml does not have itself. */
API const char *nvmlErrorString(int code)
{
    return code == IN_USE ? "in use by another client" : "another error";
}

/* --- finding a device -------------------------------------------------------------------------------------------- */

API int nvmlDeviceGetCount_v2(u32 *out)
{
    ABOUT_MACHINE();
    NEEDS(out);
    *out = 0;
    for (int gpu = gpus(); gpu-- > 0;)
        *out += present(gpu);
    return OK;
}

static int given(At *at, int gpu, Handle **out)
{
    NEEDS(out);
    if (gpu < 0)
        return NOT_FOUND;
    at->gpu = gpu;
    set_up(gpu);
    int fault = trouble(at);
    if (fault == OK)
        *out = handle_of(GPU, gpu, -1, -1, -1);
    return fault;
}

API int nvmlDeviceGetHandleByIndex_v2(u32 index, Handle **out)
{
    ABOUT_MACHINE();
    u32 rank = 0;
    for (int gpu = 0; gpu < gpus(); gpu++)
        if (present(gpu) && rank++ == index)
            return given(&at, gpu, out);
    return INVALID_ARGUMENT;
}

API int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, Handle **out)
{
    ABOUT_MACHINE();
    return given(&at, find_pci(bus_id), out);
}

API int nvmlDeviceGetHandleByUUID(const char *uuid, Handle **out)
{
    ABOUT_MACHINE();
    NEEDS(uuid);
    open_nodes();
    for (int gpu = gpus(); gpu-- > 0;) {
        if (!present(gpu))
            continue;
        if (strcmp(state_text("gpu.%d.uuid", gpu), uuid) == 0)
            return given(&at, gpu, out);
        for (int slice = 0; slice < 8; slice++) {
            const char *own = state_text("gpu.%d.mig.%d.uuid", gpu, slice);
            if (!own || strcmp(own, uuid) != 0)
                continue;
            int fault = given(&at, gpu, out);
            if (fault == OK)
                *out = handle_of(SLICE, gpu, slice, -1, -1);
            return fault;
        }
    }
    return NOT_FOUND;
}

/* --- one number, or one text ------------------------------------------------------------------------------------- */

#define TEXT(symbol, key)                                                                                              \
    API int symbol(const Handle *device, char *out, u32 size)                                                          \
    {                                                                                                                  \
        ABOUT(device);                                                                                                 \
        return get_text(&at, out, size, key);                                                                          \
    }

TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetSerial, "serial")

#define NUMBER(symbol, key)                                                                                            \
    API int symbol(const Handle *device, u32 *out)                                                                     \
    {                                                                                                                  \
        ABOUT(device);                                                                                                 \
        return get_u32(&at, out, key);                                                                                 \
    }

NUMBER(nvmlDeviceGetMinorNumber, "minor")
NUMBER(nvmlDeviceGetArchitecture, "architecture")
NUMBER(nvmlDeviceGetMemoryBusWidth, "memory.bus_width")
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, "retired.pending")
NUMBER(nvmlDeviceGetPersistenceMode, "persistence_mode")
NUMBER(nvmlDeviceGetComputeMode, "compute_mode")
NUMBER(nvmlDeviceGetPowerManagementLimit, "power.limit")
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, "power.default")
NUMBER(nvmlDeviceGetPowerUsage, "power.usage")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie.width")
NUMBER(nvmlDeviceGetPcieReplayCounter, "pcie.replays")
NUMBER(nvmlDeviceGetMaxMigDeviceCount, "mig_mode.max")
NUMBER(nvmlDeviceGetVirtualizationMode, "virtualization_mode")

#define LONG_NUMBER(symbol, key)                                                                                       \
    API int symbol(const Handle *device, u64 *out)                                                                     \
    {                                                                                                                  \
        ABOUT(device);                                                                                                 \
        return get_u64(&at, out, key);                                                                                 \
    }

API int nvmlDeviceGetUtilizationRates(const Handle *device, u32 out[2]) /* of the GPU and its memory, in percent */
{
    ABOUT(device);
    out[1] = 0;
    return get_u32(&at, out, "load");
}

LONG_NUMBER(nvmlDeviceGetCurrentClocksEventReasons, "clock.reasons")
LONG_NUMBER(nvmlDeviceGetSupportedEventTypes, "event_types")

#define NUMBER_OF(symbol, key) /* of a clock, a sensor ... */                                                          \
    API int symbol(const Handle *device, u32 which, u32 *out)                                                          \
    {                                                                                                                  \
        ABOUT(device);                                                                                                 \
        return get_u32(&at, out, key ".%u", which);                                                                    \
    }

NUMBER_OF(nvmlDeviceGetMaxClockInfo, "clock.max")
NUMBER_OF(nvmlDeviceGetApplicationsClock, "clock.app")
NUMBER_OF(nvmlDeviceGetDefaultApplicationsClock, "clock.app_default")
NUMBER_OF(nvmlDeviceGetTemperature, "temperature")
NUMBER_OF(nvmlDeviceGetTemperatureThreshold, "temperature.limit")

API int nvmlDeviceGetClockInfo(const Handle *device, u32 which, u32 *out)
{
    ABOUT(device);
    NEEDS(out);
    return which <= 1 && clock_now(at.gpu, out) ? OK : get_u32(&at, out, "clock.%u", which);
}

#define PAIR(symbol, first, second)                                                                                    \
    API int symbol(const Handle *device, u32 *one, u32 *other)                                                         \
    {                                                                                                                  \
        ABOUT(device);                                                                                                 \
        int code = get_u32(&at, one, first);                                                                           \
        return code ? code : get_u32(&at, other, second);                                                              \
    }

PAIR(nvmlDeviceGetCudaComputeCapability, "compute.major", "compute.minor")
PAIR(nvmlDeviceGetEccMode, "ecc.current", "ecc.pending")
PAIR(nvmlDeviceGetMigMode, "mig_mode.current", "mig_mode.pending")

API int nvmlDeviceGetTemperatureV(const Handle *device, TemperatureV1 *out)
{
    ABOUT(device);
    NEEDS(out);
    if (out->version != VERSION(TemperatureV1, 1))
        return VERSION_MISMATCH;
    return get_u32(&at, (u32 *)&out->degrees, "temperature.%u", out->sensor);
}

API int nvmlDeviceGetPciInfo_v3(const Handle *device, Pci *out)
{
    ABOUT(device);
    char bus_id[32];
    int code = get_text(&at, bus_id, sizeof bus_id, "pci");
    NEEDS(out);
    if (code)
        return code;
    *out = (Pci){.device_id = (u32)number(&at, "pci_device_id"), .subsystem_id = (u32)number(&at, "pci_subsystem_id")};
    if (sscanf(bus_id, "%x:%x:%x", &out->domain, &out->bus, &out->device) != 3)
        return NOT_SUPPORTED;
    snprintf(out->bus_id, sizeof out->bus_id, "%s", bus_id);
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", out->domain & 0xffff, out->bus & 0xff,
             out->device & 0xff);
    return OK;
}

/* --- memory ------------------------------------------------------------------------------------------------------ */

static int memory(const At *at, MemoryV2 *out)
{
    int code = get_u64(at, &out->total, "memory.total");
    out->reserved = number(at, "memory.reserved");
    out->used = number(at, "memory.used") + claimed(told(at, "memory.claims"));
    out->free = out->total - out->reserved - out->used;
    return code;
}

API int nvmlDeviceGetMemoryInfo_v2(const Handle *device, MemoryV2 *out)
{
    ABOUT(device);
    NEEDS(out);
    if (out->version != VERSION(MemoryV2, 2))
        return VERSION_MISMATCH;
    return memory(&at, out);
}

/* --- processes --------------------------------------------------------------------------------------------------- */

/* "PID BYTES GI CI, ..." with - for what is not known. */
const char *next_process(const char *text, Process *out)
{
    char bytes[24], gi[12], ci[12];
    int length = 0;
    if (sscanf(text, " %u %23s %11s %11[^,]%n", &out->pid, bytes, gi, ci, &length) != 4)
        return NULL;
    out->used = *bytes == '-' ? ~0ull : strtoull(bytes, NULL, 10);
    out->gi = *gi == '-' ? NOT_KNOWN : (u32)atoi(gi);
    out->ci = *ci == '-' ? NOT_KNOWN : (u32)atoi(ci);
    return text + length + (text[length] == ',');
}

static bool concerns(const At *at, const Process *process)
{
    return at->slice < 0 || (process->gi == (u32)at->gi && process->ci == (u32)at->ci);
}

/* Version 3 of the lists had wider entries for some releases: after the fields here, the protected memory. */
static size_t entry(int version)
{
    int release, update;
    const char *driver = state_text("driver_version");
    if (version < 3 || !driver || sscanf(driver, "%d.%d", &release, &update) != 2)
        return sizeof(Process);
    return sizeof(Process) + (release == 535 && update >= 43 && update <= 98 ? sizeof(u64) : 0);
}

static void put(void *out, u32 place, size_t size, Process process)
{
    memset((char *)out + place * size, 0, size);
    memcpy((char *)out + place * size, &process, sizeof process);
}

static int processes(const At *at, const char *kind, int version, u32 *count, void *out)
{
    Process process;
    size_t size = entry(version);
    Claim claims[MOST_CLAIMS];
    u32 found = 0;
    NEEDS(count);
    const char *next = state_text("gpu.%d.processes.%s", at->gpu, kind); /* one list a GPU, its slices included */
    if (!next)
        return NOT_SUPPORTED;
    while ((next = next_process(next, &process)))
        if (concerns(at, &process) && found++ < *count && out)
            put(out, found - 1, size, process);
    bool compute = at->slice < 0 && strcmp(kind, "compute") == 0; /* whoever has a context of CUDA */
    for (int i = compute ? claims_in(told(at, "memory.claims"), claims) : 0; i-- > 0;)
        if (claims[i].pid && found++ < *count && out)
            put(out, found - 1, size, (Process){claims[i].pid, claims[i].bytes, NOT_KNOWN, NOT_KNOWN});
    bool fits = found <= *count && (out || !found);
    *count = found;
    return fits ? OK : INSUFFICIENT_SIZE;
}

#define PROCESSES(symbol, kind, version)                                                                               \
    API int symbol(const Handle *device, u32 *count, void *out)                                                        \
    {                                                                                                                  \
        ABOUT(device);                                                                                                 \
        return processes(&at, kind, version, count, out);                                                              \
    }

PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, "compute", 2)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, "graphics", 2)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, "mps", 2)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, "compute", 3)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics", 3)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, "mps", 3)

/* --- errors of the memory ---------------------------------------------------------------------------------------- */

static bool ecc_off(const At *at) { return number(at, "ecc.current") == 0; }

API int nvmlDeviceGetTotalEccErrors(const Handle *device, u32 error, u32 counter, u64 *out)
{
    ABOUT(device);
    return ecc_off(&at) ? NOT_SUPPORTED : get_u64(&at, out, "ecc.total.%u.%u", error, counter);
}

API int nvmlDeviceGetRemappedRows(const Handle *device, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failure)
{
    ABOUT(device);
    if (number(&at, "mig_mode.current"))
        return NOT_SUPPORTED;
    int code = get_u32(&at, corrected, "remap.corrected");
    if (code == OK)
        code = get_u32(&at, uncorrected, "remap.uncorrected");
    if (code == OK)
        code = get_u32(&at, pending, "remap.pending");
    return code ? code : get_u32(&at, failure, "remap.failure");
}

API int nvmlDeviceGetSramEccErrorStatus(const Handle *device, SramStatus *out)
{
    ABOUT(device);
    NEEDS(out);
    if (out->version != VERSION(SramStatus, 1))
        return VERSION_MISMATCH;
    return ecc_off(&at) ? NOT_SUPPORTED : get_u32(&at, &out->exceeded, "sram.exceeded");
}

/* --- field values ------------------------------------------------------------------------------------------------ */

static void answer(const At *at, FieldValue *field_value)
{
    const char *fault = told(at, "field_fail.%u", field_value->id);
    const char *value = told(at, "field.%u", field_value->id);
    field_value->timestamp = (long long)time(NULL) * 1000000;
    field_value->latency = 0;
    field_value->code = fault ? (u32)atoi(fault) : value ? OK : NOT_SUPPORTED;
    if (field_value->code != OK)
        return;
    field_value->value.large = strtoull(value, NULL, 0);
    field_value->type = field_value->value.large >> 32 ? LONG : UNSIGNED;
}

API int nvmlDeviceGetFieldValues(const Handle *device, int count, FieldValue *values)
{
    ABOUT(device);
    if (!values || count <= 0 || count > MAX_FIELDS)
        return INVALID_ARGUMENT;
    for (int i = 0; i < count; i++)
        answer(&at, values + i);
    return OK;
}
