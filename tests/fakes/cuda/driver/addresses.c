/* Memory and addresses apart, as cuMemCreate and its neighbours give them. Addresses last until the process ends. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver.h"

enum { PINNED = 1, ON_DEVICE = 1, READ_AND_WRITE = 3, MOST = 4096 };

typedef struct {
    int kind, number;
} Location;

typedef struct {
    int kind, exported_as;
    Location location;
    void *of_windows;
    unsigned char flags[8];
} Allocation;

typedef struct {
    Location location;
    int flags;
} Access;

typedef struct {
    u64 address, size, handle;
} Mapping;

static Mapping mappings[MOST];
static int mapped;

bool inside_mapping(u64 address, u64 size)
{
    for (Mapping *each = mappings; each < mappings + mapped; each++)
        if (address >= each->address && address + size <= each->address + each->size)
            return true;
    return false;
}

void forget_mappings(void) { mapped = 0; }

static bool on_device(const Location *location) { return location->kind == ON_DEVICE && location->number == 0; }

API int cuMemAddressReserve(u64 *address, size_t size, size_t alignment, u64 wanted, unsigned long long flags)
{
    CALL_IN_CONTEXT();
    REFUSE_UNLESS(size && size % PAGE == 0 && alignment == 0 && wanted == 0 && flags == 0);
    void *found = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *address = (u64)found;
    return found == MAP_FAILED ? OUT_OF_MEMORY : CUDA_OK;
}

API int cuMemCreate(u64 *handle, size_t size, const Allocation *what, unsigned long long flags)
{
    CALL_IN_CONTEXT();
    REFUSE_UNLESS(size && size % PAGE == 0 && what->kind == PINNED && on_device(&what->location) && flags == 0);
    int status = moment("allocate");
    return status ? status : take(size, handle);
}

API int cuMemMap(u64 address, size_t size, size_t offset, u64 handle, unsigned long long flags)
{
    CALL_IN_CONTEXT();
    REFUSE_UNLESS(offset == 0 && flags == 0 && inside_memory(handle, size) && mapped < MOST);
    int file = open(device_says("memory"), O_RDWR | O_CLOEXEC);
    void *found = mmap((void *)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, file, (off_t)(handle - BASE));
    close(file);
    if (found == MAP_FAILED)
        return INVALID_VALUE;
    mappings[mapped++] = (Mapping){address, size, handle};
    return CUDA_OK;
}

API int cuMemUnmap(u64 address, size_t size)
{
    CALL_IN_CONTEXT();
    for (Mapping *each = mappings; each < mappings + mapped; each++)
        if (each->address == address && each->size == size) {
            *each = mappings[--mapped];
            return mmap((void *)address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED;
        }
    return INVALID_VALUE;
}

/* Of memory that is mapped nowhere. */
API int cuMemRelease(u64 handle)
{
    CALL_IN_CONTEXT();
    for (Mapping *each = mappings; each < mappings + mapped; each++)
        REFUSE_UNLESS(each->handle != handle);
    return give_back(handle);
}

API int cuMemSetAccess(u64 address, size_t size, const Access *access, size_t count)
{
    CALL_IN_CONTEXT();
    REFUSE_UNLESS(count == 1 && on_device(&access->location) && access->flags == READ_AND_WRITE);
    return mprotect((void *)address, size, PROT_READ | PROT_WRITE) ? INVALID_VALUE : CUDA_OK;
}
