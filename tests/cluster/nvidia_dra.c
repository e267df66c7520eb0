// What NVIDIA's DRA driver asks of NVML beside the functions of the stand-in.
#include <stdint.h>
#include <string.h>

#define API __attribute__((visibility("default")))
#define NOT_FOUND 6
#define NOT_SUPPORTED 3
#define BRAND_NVIDIA 14

typedef struct {
    uint32_t version;
    uint64_t total, reserved, free, used;
} MemoryV2;
typedef struct {
    uint64_t total, free, used;
} Memory;

int nvmlDeviceGetMemoryInfo_v2(const void *device, MemoryV2 *out);
int nvmlDeviceGetUUID(const void *device, char *text, uint32_t size);
int nvmlDeviceGetCount_v2(uint32_t *out);
int nvmlDeviceGetHandleByIndex_v2(uint32_t index, void **out);

API int nvmlDeviceGetMemoryInfo(const void *device, Memory *out) {
    MemoryV2 found = {.version = sizeof(MemoryV2) | 2 << 24};
    int result = nvmlDeviceGetMemoryInfo_v2(device, &found);
    *out = (Memory){found.total, found.free, found.used};
    return result;
}

API int nvmlDeviceGetBrand(const void *device, int *out) {
    (void)device;
    *out = BRAND_NVIDIA;
    return 0;
}

API int nvmlDeviceGetAddressingMode(const void *device, void *out) {
    (void)device;
    (void)out;
    return NOT_SUPPORTED;
}

API int nvmlDeviceIsMigDeviceHandle(const void *device, uint32_t *out) {
    (void)device;
    *out = 0;
    return 0;
}

API int nvmlDeviceGetIndex(const void *device, uint32_t *out) {
    char own[96], other[96];
    uint32_t count;
    void *found;
    int result = nvmlDeviceGetUUID(device, own, sizeof own);
    if (!result)
        result = nvmlDeviceGetCount_v2(&count);
    if (result)
        return result;
    for (*out = 0; *out < count; ++*out)
        if (!nvmlDeviceGetHandleByIndex_v2(*out, &found) && !nvmlDeviceGetUUID(found, other, sizeof other) &&
            !strcmp(own, other))
            return 0;
    return NOT_FOUND;
}

// What NVIDIA's device plugin asks beside: it prefers GPUs that are near each other.
#define SAME_SYSTEM 50

API int nvmlDeviceGetTopologyCommonAncestor(const void *one, const void *other, int *level) {
    (void)one;
    (void)other;
    *level = SAME_SYSTEM;
    return 0;
}
