/* Modules and launches. The code of a module is a translation of it, in a library that has the name of its file. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../launch.h"
#include "clock.h"
#include "driver.h"

enum { MOST_KERNELS = 64, LONGEST = 48, MOST_UNITS = 1024, SMALL_SHARED = 48 * 1024 };
enum { SHARED = 1, REGISTER = 2, SUM = 3 }; /* in which a fault is planted: see emulation.h */
enum { VECTOR = 16 }; /* bytes: what kernels of the memory count in */
enum { KERNEL_SHARED = 1, KERNEL_LOCAL = 3, MOST_DYNAMIC_SHARED = 8 };

typedef struct {
    int (*run)(const char *kernel, const Launch *launch, void *const *parameters);
    int (*own_shared)(const char *kernel);
} Module;

typedef struct {
    char name[LONGEST];
    const Module *module;
    int own, most_dynamic;
    bool loaded; /* at its first launch, which takes memory of the device */
} Kernel;

static Module module;
static Kernel kernels[MOST_KERNELS];

/* The emulation finds the shared memory of the units in this file; without one, in memory of its own. */
static void keep_shared(void *library)
{
    void (*keep)(void *, u32);
    const char *path = device_says("shared");
    void *kept = NULL;
    if (path) {
        int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (file < 0 || ftruncate(file, MOST_UNITS * SHARED_OF_UNIT) != 0)
            abort();
        kept = mmap(NULL, MOST_UNITS * SHARED_OF_UNIT, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (kept == MAP_FAILED)
            abort();
        close(file);
    }
    *(void **)&keep = dlsym(library, "emulated_keep_shared");
    keep(kept, SHARED_OF_UNIT);
}

API int cuModuleLoad(void **out, const char *file)
{
    char path[4096], copy[4096];
    CALL_IN_CONTEXT();
    if (access(file, R_OK) != 0)
        return FILE_NOT_FOUND;
    snprintf(copy, sizeof copy, "%s", file);
    snprintf(path, sizeof path, "%s/%s.so", getenv("AUTOCLAVE_FAKE_CUDA"), basename(copy));
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return NO_BINARY_FOR_GPU;
    *(void **)&module.run = dlsym(library, "emulate");
    *(void **)&module.own_shared = dlsym(library, "emulated_own_shared");
    keep_shared(library);
    *out = &module;
    return CUDA_OK;
}

API int cuModuleGetFunction(Kernel **out, const Module *from, const char *name)
{
    CALL_IN_CONTEXT();
    REFUSE_UNLESS(from == &module);
    int own = module.own_shared(name);
    if (own < 0)
        return NAME_NOT_FOUND;
    for (Kernel *kernel = kernels; kernel < kernels + MOST_KERNELS; kernel++) {
        if (*kernel->name && strcmp(kernel->name, name) != 0)
            continue;
        if (!*kernel->name) {
            *kernel = (Kernel){.module = from, .own = own, .most_dynamic = SMALL_SHARED};
            snprintf(kernel->name, LONGEST, "%s", name);
        }
        *out = kernel;
        return CUDA_OK;
    }
    return OUT_OF_MEMORY;
}

/* The system reserves shared memory of each block. A driver may say that it is the kernel's own (names_reserved), and may
 * count it against what a block asks for: when the attribute is set, or at the launch (counts_reserved). */
static bool fits(const Kernel *kernel, u64 dynamic, const char *asked_at)
{
    const char *counted = device_says("counts_reserved");
    if (counted && strcmp(counted, asked_at) != 0 && strcmp(asked_at, "attribute") == 0)
        return true;
    u64 reserved = counted ? SHARED_OF_SYSTEM : 0;
    return (u64)kernel->own + reserved + dynamic <= SHARED_OF_BLOCK;
}

static int too_much(void)
{
    const char *status = device_says("refuses_size_with");
    return status ? atoi(status) : INVALID_VALUE;
}

API int cuFuncGetAttribute(int *out, int attribute, const Kernel *kernel)
{
    CALL_IN_CONTEXT();
    REFUSE_UNLESS(kernel != NULL);
    const char *local = device_says("local.%s", kernel->name);
    switch (attribute) {
    case KERNEL_SHARED: *out = kernel->own + (device_says("names_reserved") ? SHARED_OF_SYSTEM : 0); break;
    case KERNEL_LOCAL: *out = local ? atoi(local) : 0; break;
    case MOST_DYNAMIC_SHARED: *out = kernel->most_dynamic; break;
    default: *out = 0;
    }
    return CUDA_OK;
}

API int cuFuncSetAttribute(Kernel *kernel, int attribute, int value)
{
    CALL_IN_CONTEXT();
    REFUSE_UNLESS(kernel != NULL && attribute == MOST_DYNAMIC_SHARED && value >= 0);
    if (!fits(kernel, (u64)value, "attribute"))
        return too_much();
    kernel->most_dynamic = value;
    return CUDA_OK;
}

/* --- launches ----------------------------------------------------------------------------------------------------- */

static bool is(const Kernel *kernel, const char *name) { return strcmp(kernel->name, name) == 0; }

static bool of_memory(const Kernel *kernel)
{
    return is(kernel, "write") || is(kernel, "check") || is(kernel, "invert");
}

/* What goes over nothing is no launch that a fault is meant for. */
static bool is_empty(const Kernel *kernel, void *const *parameters)
{
    return of_memory(kernel) && *(const u64 *)parameters[1] == 0;
}

/* The first unit that errs in this kernel, by a fault in the block that runs there. */
static Fault planted(const Kernel *kernel, const Launch *launch)
{
    bool holds = is(kernel, "scratch") || is(kernel, "registers");
    const char *key = holds ? "leaky" : "deviating";
    for (u32 block = 0; block < launch->grid && (holds || is(kernel, "exact")); block++)
        if (device_lists(key, launch->unit_of_block[block]))
            return (Fault){.where = is(kernel, "scratch") ? SHARED : holds ? REGISTER : SUM, .block = block, .flip = 1};
    return (Fault){0};
}

/* Such an error ends the context. The call that waits for the launch answers it, and each later one. */
static bool of_context(int status) { return status == ILLEGAL_ADDRESS || (status >= 702 && status < 720); }

static void run(const Kernel *kernel, Launch *launch, void *const *parameters)
{
    u32 places[MOST_UNITS], reached = 0, units[MOST_UNITS];
    const char *text = device_says("units");
    u32 count = text ? (u32)atoi(text) : 4;
    for (u32 unit = 0; unit < count; unit++)
        if (!device_lists("unreached", unit))
            units[reached++] = unit;
    for (u32 block = 0; reached && block < launch->grid && block < MOST_UNITS; block++)
        places[block] = units[block % reached];
    launch->unit_of_block = of_memory(kernel) ? NULL : places;
    launch->units = count;
    launch->fault = of_memory(kernel) ? (Fault){0} : planted(kernel, launch);
    if (module.run(kernel->name, launch, parameters) != DONE)
        broken(LAUNCH_FAILED); /* the launch itself was good */
    if (of_memory(kernel))
        clear_late(*(const u64 *)parameters[0], *(const u64 *)parameters[1] * VECTOR, !is(kernel, "check"));
    press_stuck_bits();
}

/* --- the stream: what was launched runs when a call waits for it, and not at all if none does ------------------------ */

enum { MOST_WORDS = 8, MOST_QUEUED = 1024 };

typedef struct {
    const Kernel *kernel; /* or an event: */
    struct timespec *event;
    Launch launch;
    u64 words[MOST_WORDS];
} Queued;

static Queued queue[MOST_QUEUED];
static size_t queued;

static const struct {
    const char *name;
    int words;
} signatures[] = {{"write", 6}, {"check", 7}, {"invert", 8}, {"exact", 3}};

/* How many arguments it has; of those that run on each unit, two. */
static int words_of(const Kernel *kernel)
{
    for (size_t i = 0; i < sizeof signatures / sizeof *signatures; i++)
        if (is(kernel, signatures[i].name))
            return signatures[i].words;
    return 2;
}

/* The kind of a pattern, a direction, a canary and a number of rounds are 32 bits wide. */
static bool is_short(const Kernel *kernel, int word)
{
    if (of_memory(kernel))
        return word == 3 || (is(kernel, "invert") && word == 6);
    bool whole_key = is(kernel, "scratch") || is(kernel, "registers");
    return is(kernel, "exact") ? word == 1 : word == 0 && !whole_key;
}

int wait_for(const struct timespec *event)
{
    size_t done = 0;
    for (bool reached = false; done < queued && !reached; done++) {
        Queued *next = &queue[done];
        if (next->event) {
            clock_gettime(CLOCK_MONOTONIC, next->event);
            reached = next->event == event;
            continue;
        }
        void *parameters[MOST_WORDS];
        for (int word = 0; word < MOST_WORDS; word++)
            parameters[word] = &next->words[word];
        clock_launch(device_number());
        run(next->kernel, &next->launch, parameters);
    }
    memmove(queue, queue + done, (queued -= done) * sizeof *queue);
    return failed();
}

static Queued *last(void)
{
    if (queued == MOST_QUEUED)
        wait_for(NULL);
    queue[queued] = (Queued){0};
    return &queue[queued++];
}

void put_event(struct timespec *event) { last()->event = event; }

API int cuLaunchKernel(Kernel *kernel, u32 grid, u32 grid_y, u32 grid_z, u32 block, u32 block_y, u32 block_z,
                       u32 shared, void *stream, void *const *parameters, void *const *extra)
{
    CALL_IN_CONTEXT();
    REFUSE_UNLESS(kernel && grid && grid_y == 1 && grid_z == 1 && block && block <= 1024 && block_y == 1 && block_z == 1);
    REFUSE_UNLESS(stream == NULL && extra == NULL && shared <= (u32)kernel->most_dynamic);
    if (!kernel->loaded && !has_gap(PAGE))
        return OUT_OF_MEMORY;
    if (!fits(kernel, shared, "launch"))
        return too_much();
    kernel->loaded = true;
    int status = is_empty(kernel, parameters) ? CUDA_OK : moment(kernel->name);
    if (status)
        return of_context(status) ? broken(status), CUDA_OK : status;
    if (is(kernel, "write") && device_says("lazy"))
        return CUDA_OK;
    Queued *next = last();
    next->kernel = kernel;
    next->launch = (Launch){.grid = grid, .block = block, .shared_bytes = shared};
    for (int word = 0; word < words_of(kernel); word++)
        memcpy(&next->words[word], parameters[word], sizeof(u32) * (1 + !is_short(kernel, word)));
    return CUDA_OK;
}

void forget_kernels(void)
{
    memset(kernels, 0, sizeof kernels);
    queued = 0;
}

/* --- the runtime of CUDA -------------------------------------------------------------------------------------------- */

/* It begins with these two, which no worker may reach: it checks that its driver is NVIDIA's, and its errors stay. */
static _Noreturn void reached(const char *call)
{
    fprintf(stderr, "the runtime of CUDA was called: it asks the driver for %s\n", call);
    abort();
}

API void cuGetProcAddress_v2(void) { reached(__func__); }

API void cuGetExportTable(void) { reached(__func__); }

/* --- errors ------------------------------------------------------------------------------------------------------- */

static const struct {
    int status;
    const char *name, *text;
} errors[] = {
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {FILE_NOT_FOUND, "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {TOO_MANY_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
};

API int cuGetErrorName(int status, const char **out)
{
    *out = "CUDA_ERROR";
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].status == status)
            *out = errors[i].name;
    return CUDA_OK;
}

API int cuGetErrorString(int status, const char **out)
{
    *out = "an error without a text here";
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].status == status)
            *out = errors[i].text;
    return CUDA_OK;
}
