/* The device, its context and its memory: a file that is mapped at one address, and outlives the processes. */
#define _GNU_SOURCE
#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"
#include "nodes.h"

enum { HOST = 2 * PAGE /* that can be pinned */, ALIASED = 4096, MOST_PIECES = 4096, THREADS = 1024 /* whose stacks a context has room for */, EVENT = 1 };

typedef struct {
    u64 at, size;
    bool late; /* it is to be cleared after the first launch over it */
} Piece;

static int node = -1, claim = -1, somebody = -1;
static bool initialized;
static unsigned char *cells;
static u64 total;
static Piece pieces[MOST_PIECES]; /* by their place; the first one is the context */
static int taken;
static u64 pinned;
static u64 limits[3] = {1024, 1 << 20, 1 << 23}; /* stack of a thread, print buffer, device heap: if nobody sets them */

/* --- who is there ------------------------------------------------------------------------------------------------- */

static const char *claims(void) { return state_text("gpu.%d.memory.claims", device_number()); }

static int claim_file(const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", claims(), name);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || flock(file, LOCK_EX) != 0 || ftruncate(file, 0) != 0)
        abort();
    return file;
}

static void write_claim(int file, u64 bytes)
{
    char text[32];
    snprintf(text, sizeof text, "%-20llu", bytes);
    if (pwrite(file, text, strlen(text), 0) < 0)
        abort();
}

int claim_as(const char *name, u64 bytes)
{
    somebody = claim_file(name);
    write_claim(somebody, bytes);
    return somebody;
}

static u64 used(void)
{
    u64 sum = 0;
    for (int i = 0; i < taken; i++)
        sum += pieces[i].size;
    return sum;
}

static void tell(void) { write_claim(claim, used()); }

/* --- the device --------------------------------------------------------------------------------------------------- */

API int cuInit(u32 flags)
{
    CALL();
    REFUSE_UNLESS(flags == 0);
    if (!device_found())
        return NO_DEVICE;
    if (node < 0)
        node = open_node(device_number());
    initialized = true;
    return CUDA_OK;
}

API int cuDriverGetVersion(int *version)
{
    CALL();
    *version = 13000;
    return CUDA_OK;
}

API int cuDeviceGetCount(int *count)
{
    CALL();
    if (!initialized)
        return NOT_INITIALIZED;
    const char *shown = device_says("shown");
    *count = shown ? atoi(shown) : 1;
    return CUDA_OK;
}

API int cuDeviceGetPCIBusId(char *out, int size, int device)
{
    CALL();
    REFUSE_UNLESS(initialized && device == 0 && size > 12);
    const char *other = device_says("shown_pci");
    /* NVML writes eight digits of the domain, CUDA four. */
    snprintf(out, (size_t)size, "%s", other ? other : state_text("gpu.%d.pci", device_number()) + 4);
    for (; *out; out++)
        *out = (char)toupper(*out);
    return CUDA_OK;
}

API int cuDeviceGetUuid_v2(unsigned char *out, int device)
{
    CALL();
    REFUSE_UNLESS(initialized && device == 0);
    const char *text = strchr(device_uuid(), '-');
    memset(out, 0, 16);
    for (int digit = 0; text && *text && digit < 32; text++)
        if (isxdigit((unsigned char)*text)) {
            int value = isdigit((unsigned char)*text) ? *text - '0' : tolower(*text) - 'a' + 10;
            out[digit / 2] |= (unsigned char)(digit % 2 ? value : value << 4);
            digit++;
        }
    return CUDA_OK;
}

static int capability(int part)
{
    int major = 9, minor = 0;
    const char *text = device_says("capability");
    if (text)
        sscanf(text, "%d.%d", &major, &minor);
    return part ? minor : major;
}

API int cuDeviceGetAttribute(int *out, int attribute, int device)
{
    CALL();
    REFUSE_UNLESS(initialized && device == 0);
    const char *value = device_says("attribute.%d", attribute);
    const char *units = device_says("units");
    switch (attribute) {
    case 16: *out = units ? atoi(units) : 4; break;
    case 39: *out = 2048; break;
    case 75: *out = capability(0); break;
    case 76: *out = capability(1); break;
    case 81: *out = SHARED_OF_UNIT; break;
    case 97: *out = SHARED_OF_BLOCK; break;
    case 102: *out = 1; break;
    case 111: *out = SHARED_OF_SYSTEM; break;
    default: *out = 0;
    }
    if (value)
        *out = atoi(value);
    return CUDA_OK;
}

/* --- the context -------------------------------------------------------------------------------------------------- */

static u64 pages(u64 size) { return (size + PAGE - 1) / PAGE * PAGE; }

static u64 gap(u64 size)
{
    u64 at = 0;
    for (int i = 0; i < taken && pieces[i].at - at < size; i++)
        at = pieces[i].at + pieces[i].size;
    return at + size <= total ? at : total;
}

bool has_gap(u64 size) { return gap(size) < total; }

/* What this driver clears of memory that it hands out, as one does that clears what is freed. */
static void clear(const char *key, unsigned char *memory, u64 at, u64 size)
{
    u64 from, length;
    int read;
    for (const char *next = device_says("%s", key); next && sscanf(next, " %llu:%llu%n", &from, &length, &read) == 2;
         next += read) {
        u64 low = from > at ? from : at, high = from + length < at + size ? from + length : at + size;
        if (low < high)
            memset(memory + low, 0, high - low);
    }
}

void clear_late(u64 address, u64 size, bool written)
{
    for (Piece *piece = pieces; piece < pieces + taken; piece++)
        if (piece->late && address < BASE + piece->at + piece->size && BASE + piece->at < address + size) {
            piece->late = false;
            if (!written)
                memset(cells + piece->at, 0, piece->size);
        }
}

int take(u64 size, u64 *address)
{
    u64 at = gap(size);
    int place = 0;
    if (at == total || taken == MOST_PIECES || claimed(claims()) + pages(size) > total)
        return OUT_OF_MEMORY;
    while (place < taken && pieces[place].at < at)
        place++;
    memmove(pieces + place + 1, pieces + place, (size_t)(taken++ - place) * sizeof *pieces);
    pieces[place] = (Piece){at, pages(size), device_says("clears_late")};
    clear("clears", cells, at, pages(size));
    *address = BASE + at;
    tell();
    return CUDA_OK;
}

static u64 context_size(void)
{
    u64 size = limits[0] * THREADS + limits[1] + limits[2];
    return pages(size > PAGE ? size : PAGE);
}

static void map_memory(void)
{
    struct stat about;
    int file = open(device_says("memory"), O_RDWR | O_CLOEXEC);
    if (file < 0 || fstat(file, &about) != 0)
        abort();
    total = (u64)about.st_size;
    cells = mmap((void *)BASE, total, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0);
    if (cells != (void *)BASE)
        abort();
    u64 at, other;
    int length;
    for (const char *next = device_says("aliases"); next && sscanf(next, " %llu:%llu%n", &at, &other, &length) == 2;
         next += length)
        if (mmap((void *)(BASE + at), ALIASED, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, (off_t)other) ==
            MAP_FAILED)
            abort();
    close(file);
}

/* Of a GPU in the mode "prohibited" nobody gets a context, of one in "exclusive process" nobody beside another process. */
static bool available(void)
{
    const char *mode = state_text("gpu.%d.compute_mode", device_number());
    int number = mode ? atoi(mode) : 0;
    return number != 2 && (number != 3 || claimed(claims()) == 0);
}

void report_load(const char *percent)
{
    char key[KEY];
    snprintf(key, sizeof key, "gpu.%d.load", device_number());
    if (!state_text("%s", key) || !edit_begin())
        return;
    edit_set(key, percent);
    edit_end();
    state_refresh();
}

API int cuDevicePrimaryCtxRetain(void **out, int device)
{
    CALL();
    REFUSE_UNLESS(initialized && device == 0);
    if (cells == NULL) {
        char name[40];
        struct stat numbers = {0};
        u64 address;
        if (!available())
            return DEVICE_UNAVAILABLE;
        stat("/proc/self/ns/pid", &numbers); /* the first process of each container has the same number */
        snprintf(name, sizeof name, "%d.%lu", getpid(), (unsigned long)numbers.st_ino);
        map_memory();
        claim = claim_file(name);
        report_load("0");
        int status = moment("allocate");
        status = status ? status : take(context_size(), &address);
        if (status)
            return status;
    }
    *out = &cells;
    return CUDA_OK;
}

/* How waits are done changes nothing here. */
API int cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags)
{
    CALL();
    REFUSE_UNLESS(initialized && device == 0 && flags <= 4);
    return CUDA_OK;
}

API int cuCtxSetCurrent(void *context)
{
    CALL();
    REFUSE_UNLESS(cells != NULL && context == &cells);
    set_current(true);
    return CUDA_OK;
}

/* The context has room for so much of it; one that something was taken beside stays as it is. */
API int cuCtxSetLimit(int limit, size_t value)
{
    CALL_IN_CONTEXT();
    REFUSE_UNLESS(limit >= 0 && limit < 3 && value > 0 && !device_lists("refuses_limits", (u32)limit));
    limits[limit] = value;
    if (taken == 1) {
        pieces[0].size = context_size();
        tell();
    }
    return CUDA_OK;
}

/* As the driver orders it: after everything that was launched before. */
#define WAIT_FOR_ALL()                                                                                                 \
    do {                                                                                                               \
        int ended_with = wait_for(NULL);                                                                               \
        if (ended_with)                                                                                                \
            return ended_with;                                                                                         \
    } while (0)

/* --- memory ------------------------------------------------------------------------------------------------------- */

bool inside_memory(u64 address, u64 size)
{
    for (int i = 0; i < taken; i++)
        if (address >= BASE + pieces[i].at && address + size <= BASE + pieces[i].at + pieces[i].size)
            return true;
    return inside_mapping(address, size);
}

API int cuMemAlloc_v2(u64 *address, size_t size)
{
    CALL_IN_CONTEXT();
    REFUSE_UNLESS(size > 0);
    const char *most = device_says("fails_after");
    if (most && taken >= atoi(most))
        return broken(ILLEGAL_ADDRESS);
    int status = moment("allocate");
    return status ? status : take(size, address);
}

/* It is not freed before the process ends. */
API int cuMemHostAlloc(unsigned char **address, size_t size, u32 flags)
{
    CALL_IN_CONTEXT();
    REFUSE_UNLESS(size > 0 && size % PAGE == 0 && flags == 0);
    if (pinned + size > HOST)
        return OUT_OF_MEMORY;
    const char *path = device_says("pinned");
    int file = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : memfd_create("pinned", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, HOST) != 0)
        abort();
    *address = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, (off_t)pinned);
    if (*address == MAP_FAILED)
        abort();
    close(file);
    clear("pinned_clears", *address - pinned, pinned, size);
    pinned += size;
    return CUDA_OK;
}

int give_back(u64 address)
{
    for (int i = 0; i < taken; i++)
        if (BASE + pieces[i].at == address) {
            memmove(pieces + i, pieces + i + 1, (size_t)(--taken - i) * sizeof *pieces);
            tell();
            return CUDA_OK;
        }
    return INVALID_VALUE;
}

API int cuMemFree_v2(u64 address)
{
    CALL_IN_CONTEXT();
    WAIT_FOR_ALL();
    return give_back(address);
}

API int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    CALL_IN_CONTEXT();
    u64 all = claimed(claims());
    *total_bytes = total;
    *free_bytes = all < total ? total - all : 0;
    return CUDA_OK;
}

API int cuMemcpyHtoD_v2(u64 address, const void *data, size_t size)
{
    CALL_IN_CONTEXT();
    REFUSE_UNLESS(inside_memory(address, size));
    WAIT_FOR_ALL();
    memcpy((void *)address, data, size);
    press_stuck_bits();
    return CUDA_OK;
}

API int cuMemcpyDtoH_v2(void *data, u64 address, size_t size)
{
    CALL_IN_CONTEXT();
    REFUSE_UNLESS(inside_memory(address, size));
    WAIT_FOR_ALL();
    memcpy(data, (void *)address, size);
    return CUDA_OK;
}

API int cuMemsetD8Async(u64 address, unsigned char value, size_t size, void *stream)
{
    CALL_IN_CONTEXT();
    REFUSE_UNLESS(stream == NULL && inside_memory(address, size));
    WAIT_FOR_ALL();
    memset((void *)address, value, size);
    return CUDA_OK;
}

API int cuMemcpyDtoDAsync_v2(u64 to, u64 from, size_t size, void *stream)
{
    CALL_IN_CONTEXT();
    REFUSE_UNLESS(stream == NULL && inside_memory(to, size) && inside_memory(from, size));
    WAIT_FOR_ALL();
    memmove((void *)to, (void *)from, size);
    return CUDA_OK;
}

void press_stuck_bits(void)
{
    u64 at;
    u32 bits;
    int length;
    for (const char *next = device_says("stuck"); next && sscanf(next, " %llu:%u%n", &at, &bits, &length) == 2;
         next += length)
        if (at < total)
            cells[at] |= (unsigned char)bits;
}

/* --- events -------------------------------------------------------------------------------------------------------- */

API int cuEventCreate(void **event, u32 flags)
{
    CALL_IN_CONTEXT();
    (void)flags;
    *event = calloc(1, sizeof(struct timespec));
    return *event ? CUDA_OK : OUT_OF_MEMORY;
}

API int cuEventRecord(struct timespec *event, void *stream)
{
    CALL_IN_CONTEXT();
    REFUSE_UNLESS(event != NULL && stream == NULL);
    put_event(event);
    return CUDA_OK;
}

API int cuEventSynchronize(const struct timespec *event)
{
    CALL_IN_CONTEXT();
    int status = wait_for(event);
    return event->tv_sec ? status : INVALID_HANDLE;
}

API int cuEventElapsedTime(float *milliseconds, const struct timespec *start, const struct timespec *end)
{
    CALL_IN_CONTEXT();
    if (!start->tv_sec || !end->tv_sec)
        return INVALID_HANDLE;
    *milliseconds = (float)(end->tv_sec - start->tv_sec) * 1e3f + (float)(end->tv_nsec - start->tv_nsec) / 1e6f;
    return CUDA_OK;
}

/* --- for tests in one process: as if nothing had been called yet ---------------------------------------------------- */

void forget_memory(void)
{
    if (cells)
        munmap(cells, total);
    int *const files[] = {&node, &claim, &somebody};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        if (*files[i] >= 0)
            close(*files[i]);
        *files[i] = -1;
    }
    cells = NULL;
    taken = 0;
    pinned = 0;
    initialized = false;
    memcpy(limits, (u64[]){1024, 1 << 20, 1 << 23}, sizeof limits);
}

API void cuForgetAll(void)
{
    forget_calls();
    forget_memory();
    forget_mappings();
    forget_kernels();
}
