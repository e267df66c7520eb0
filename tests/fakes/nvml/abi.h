/* The numbers and shapes of NVML's interface, as far as the stand-in speaks it. */
#ifndef ABI_H
#define ABI_H

#define API __attribute__((visibility("default")))

enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMED_OUT = 10,
    GPU_IS_LOST = 15,
    RESET_REQUIRED = 16,
    OPERATING_SYSTEM = 17,
    IN_USE = 19,
    INSUFFICIENT_RESOURCES = 23,
    VERSION_MISMATCH = 25,
};

typedef unsigned int u32;
typedef unsigned long long u64;

/* A struct that carries its version says its own size and its number. */
#define VERSION(type, number) ((u32)(sizeof(type) | ((u32)(number) << 24)))

typedef struct { u32 version; u64 total, reserved, free, used; } MemoryV2;
typedef struct { u32 pid; u64 used; u32 gi, ci; } Process;
typedef struct {
    char legacy[16];
    u32 domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} Pci;
typedef struct {
    u32 id, scope;
    long long timestamp, latency;
    u32 type, code;
    union { double real; u32 small; u64 large; } value;
} FieldValue;
typedef struct { u32 version, sensor; int degrees; } TemperatureV1;
typedef struct { u32 version; u64 counts[11]; u32 exceeded; } SramStatus;
typedef struct { u32 version; unsigned char cluster[16]; u32 status, clique, state, health; } FabricV2;
typedef struct { struct Handle *device; u64 type, data; u32 gi, ci; } EventData;

typedef struct { u32 start, size; } Placement;
typedef struct {
    u32 id, p2p, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpegs, ofas;
    u64 memory_mb;
} GiProfile;
typedef struct {
    u32 version, id, p2p, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpegs, ofas;
    u64 memory_mb;
    char name[96];
} GiProfileV2;
typedef struct { struct Handle *device; u32 id, profile; Placement placement; } GiInfo;
typedef struct { struct Handle *device, *instance; u32 id, profile; Placement placement; } CiInfo;

#endif
