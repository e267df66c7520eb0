/* Init and shutdown, handles, the log of calls, and the faults. */
#define _GNU_SOURCE
#include "nodes.h"
#include "session.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PAUSE_NS = 3 * 1000 * 1000, MOST = 64 };

struct Handle {
    Kind kind;
    char uuid[96]; /* of the GPU; of a slice its own */
    int gi, ci;
    unsigned session;
    Handle *next;
};

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static Handle *handles;
static unsigned users, session;
static unsigned set_up_in[MOST]; /* the session in which each GPU was set up */
static int nodes[MOST]; /* one more than the number of the open file; 0: none */
static bool attached;
static int client = -1; /* held and locked as long as NVML is open: nvidia-smi finds us by it */

/* --- who is there ------------------------------------------------------------------------------------------------ */

static void client_path(char *out, size_t size, bool folder)
{
    if (folder)
        snprintf(out, size, "%s.clients", state_path());
    else
        snprintf(out, size, "%s.clients/%d", state_path(), getpid());
}

static void announce(void)
{
    char path[4096];
    client_path(path, sizeof path, true);
    mkdir(path, 0777);
    client_path(path, sizeof path, false);
    client = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0666);
    if (client >= 0)
        flock(client, LOCK_SH | LOCK_NB);
}

/* Whoever looks for a GPU by its name goes through all of them, and keeps their nodes open until the end. */
void open_nodes(void)
{
    for (int gpu = gpus(); !attached && gpu-- > 0;)
        if (present(gpu) && gpu < MOST)
            nodes[gpu] = 1 + open_node(gpu);
    attached = true;
}

static void close_nodes(void)
{
    for (int gpu = 0; gpu < MOST; gpu++)
        if (nodes[gpu] > 0)
            close(nodes[gpu] - 1);
    memset(nodes, 0, sizeof nodes);
    attached = false;
}

static void withdraw(void)
{
    char path[4096];
    close_nodes();
    if (client < 0 || !state_path())
        return;
    client_path(path, sizeof path, false);
    unlink(path);
    close(client);
    client = -1;
}

static void note(const char *call, const Handle *about)
{
    const char *path = getenv("AUTOCLAVE_FAKE_NVML_LOG");
    if (!path || !*path)
        return;
    char line[KEY];
    int length = snprintf(line, sizeof line, "%d %s %s\n", getpid(), call, about ? about->uuid : "-");
    int log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (log < 0)
        return;
    if (write(log, line, (size_t)length) != length)
        abort(); /* a log with holes would prove nothing */
    close(log);
}

/* --- which GPU --------------------------------------------------------------------------------------------------- */

int gpus(void)
{
    int number = 0;
    while (state_text("gpu.%d.uuid", number))
        number++;
    return number;
}

/* What the real library does with a node that it may not open (an H200 with the driver 580.159.04): it lists no such GPU. */
static bool hidden[MOST];
static void look(void)
{
    for (int gpu = gpus(); gpu-- > 0;) {
        const char *node = state_text("gpu.%d.device_file", gpu);
        int opened = node && gpu < MOST ? open(node, O_RDWR | O_CLOEXEC) : -1;
        if (gpu < MOST)
            hidden[gpu] = opened < 0 && errno == EPERM;
        if (opened >= 0)
            close(opened);
    }
}
bool present(int gpu) { return !(gpu < MOST && hidden[gpu]) && !state_says("gpu.%d.absent", gpu); }

static bool same(const char *left, const char *right) { return left && right && strcmp(left, right) == 0; }

static int find_uuid(const char *uuid)
{
    for (int gpu = gpus(); gpu-- > 0;)
        if (present(gpu) && same(state_text("gpu.%d.uuid", gpu), uuid))
            return gpu;
    return -1;
}

static bool find_slice(At *at, const char *uuid)
{
    for (int gpu = gpus(); gpu-- > 0;)
        for (int slice = 0; present(gpu) && slice < 8; slice++)
            if (same(state_text("gpu.%d.mig.%d.uuid", gpu, slice), uuid)) {
                at->gpu = gpu;
                at->slice = slice;
                at->gi = atoi(state_text("gpu.%d.mig.%d.gi", gpu, slice));
                at->ci = atoi(state_text("gpu.%d.mig.%d.ci", gpu, slice));
                return true;
            }
    return false;
}

int find_gpu(const Handle *device) { return find_uuid(device->uuid); }

int find_pci(const char *bus_id)
{
    u32 wanted[3], found[3];
    if (!bus_id || sscanf(bus_id, "%x:%x:%x", wanted, wanted + 1, wanted + 2) != 3)
        return -1;
    for (int gpu = gpus(); gpu-- > 0;) {
        const char *pci = state_text("gpu.%d.pci", gpu);
        if (present(gpu) && pci && sscanf(pci, "%x:%x:%x", found, found + 1, found + 2) == 3 &&
            memcmp(wanted, found, sizeof wanted) == 0)
            return gpu;
    }
    return -1;
}

/* --- handles ----------------------------------------------------------------------------------------------------- */

Handle *handle_of(Kind kind, int gpu, int slice, int gi, int ci)
{
    const char *uuid = kind == SLICE ? state_text("gpu.%d.mig.%d.uuid", gpu, slice) : state_text("gpu.%d.uuid", gpu);
    for (Handle *known = handles; known; known = known->next)
        if (known->kind == kind && known->session == session && known->gi == gi && known->ci == ci &&
            same(known->uuid, uuid))
            return known;
    Handle *handle = calloc(1, sizeof *handle);
    if (!handle)
        abort();
    *handle = (Handle){.kind = kind, .gi = gi, .ci = ci, .session = session, .next = handles};
    snprintf(handle->uuid, sizeof handle->uuid, "%s", uuid ? uuid : "");
    return handles = handle;
}

static bool given_by_us(const Handle *handle)
{
    for (Handle *known = handles; known; known = known->next)
        if (known == handle)
            return handle->session == session;
    return false;
}

static bool has_part(const At *at, Kind kind)
{
    if (kind == GPU)
        return true;
    if (!state_text("gpu.%d.gi.%d.profile", at->gpu, at->gi))
        return false;
    for (int slice = 0; kind == COMPUTE_INSTANCE && slice < 8; slice++) {
        const char *gi = state_text("gpu.%d.mig.%d.gi", at->gpu, slice);
        if (gi && atoi(gi) == at->gi && atoi(state_text("gpu.%d.mig.%d.ci", at->gpu, slice)) == at->ci)
            return true;
    }
    return kind == GPU_INSTANCE;
}

static int locate(At *at, const Handle *about, int kinds)
{
    if (!given_by_us(about) || !(kinds & 1 << about->kind))
        return INVALID_ARGUMENT;
    if (about->kind == SLICE)
        return find_slice(at, about->uuid) ? OK : INVALID_ARGUMENT;
    at->gpu = find_gpu(about);
    at->gi = about->gi;
    at->ci = about->ci;
    if (at->gpu < 0)
        return GPU_IS_LOST;
    return has_part(at, about->kind) ? OK : INVALID_ARGUMENT;
}

/* --- faults ------------------------------------------------------------------------------------------------------ */

/* A GPU that wants a reset still says who it is. */
static bool names_it(const char *call)
{
    static const char *const names[] = {"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByUUID",
                                        "nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetUUID",
                                        "nvmlDeviceGetIndex", "nvmlDeviceGetMinorNumber",
                                        "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetName"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (same(names[i], call))
            return true;
    return false;
}

static const char *ordered(const At *at, const char *what)
{
    const char *order = state_text("%s.%s", what, at->call);
    if (!order)
        order = state_text("%s.*", what);
    if (!order && at->slice >= 0)
        order = state_text("gpu.%d.mig.%d.%s.%s", at->gpu, at->slice, what, at->call);
    if (!order && at->gpu >= 0)
        order = state_text("gpu.%d.%s.%s", at->gpu, what, at->call);
    if (!order && at->gpu >= 0)
        order = state_text("gpu.%d.%s.*", at->gpu, what);
    return order;
}

int trouble(const At *at)
{
    const char *order = ordered(at, "fail");
    if (order)
        return atoi(order);
    if (at->gpu >= 0 && state_says("gpu.%d.lost", at->gpu))
        return GPU_IS_LOST;
    if (at->gpu >= 0 && state_says("gpu.%d.reset_required", at->gpu) && !names_it(at->call))
        return RESET_REQUIRED;
    return OK;
}

int privileged(void)
{
    if (state_find("privileged"))
        return state_says("privileged") ? OK : NO_PERMISSION;
    return geteuid() == 0 ? OK : NO_PERMISSION;
}

/* --- one call ---------------------------------------------------------------------------------------------------- */

static int admitted(At *at, const Handle *about, int kinds)
{
    at->gpu = at->slice = at->gi = at->ci = -1;
    if (!users && kinds != OPENING)
        return UNINITIALIZED;
    if (!state_refresh())
        return kinds == CLOSING ? OK : DRIVER_NOT_LOADED;
    int misplaced = kinds > 0 ? locate(at, about, kinds) : OK;
    return misplaced ? misplaced : trouble(at);
}

void pause_turn(void)
{
    pthread_mutex_unlock(&turn);
    nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    pthread_mutex_lock(&turn);
}

/* The first handle of a GPU in a session has the driver set that GPU up. This lasts while the file exists. */
void set_up(int gpu)
{
    const char *file;
    if (gpu >= MOST)
        return;
    while (set_up_in[gpu] != session && (file = state_text("gpu.%d.sets_up", gpu)) && access(file, F_OK) == 0)
        pause_turn();
    set_up_in[gpu] = session;
}

static bool hangs(const At *at)
{
    const char *file = ordered(at, "hang");
    return file && access(file, F_OK) == 0;
}

int enter(At *at, const char *call, const Handle *about, int kinds)
{
    pthread_mutex_lock(&turn);
    at->inside = true;
    at->call = call;
    note(call, given_by_us(about) ? about : NULL);
    for (;;) {
        int refused = admitted(at, about, kinds);
        if (!hangs(at))
            return refused;
        pause_turn();
    }
}

void leave(At *at)
{
    if (at->inside)
        pthread_mutex_unlock(&turn);
}

static int opened(void)
{
    if (users++ == 0) {
        session++; /* handles of an earlier session are void */
        look();
        announce();
    }
    return OK;
}

API int nvmlInitWithFlags(u32 flags)
{
    (void)flags;
    OPENED(NULL, OPENING);
    return opened();
}

API int nvmlInit_v2(void)
{
    OPENED(NULL, OPENING);
    return opened();
}

API int nvmlShutdown(void)
{
    OPENED(NULL, CLOSING);
    if (--users == 0)
        withdraw();
    return OK;
}

/* --- what is told ------------------------------------------------------------------------------------------------ */

static const char *told_of(const At *at, const char *key)
{
    if (at->slice >= 0) {
        const char *own = state_text("gpu.%d.mig.%d.%s", at->gpu, at->slice, key);
        if (own)
            return own;
    }
    if (at->gi >= 0)
        return state_text("gpu.%d.gi.%d.%s", at->gpu, at->gi, key);
    return state_text("gpu.%d.%s", at->gpu, key);
}

const char *told(const At *at, const char *format, ...)
{
    char key[KEY];
    va_list rest;
    va_start(rest, format);
    vsnprintf(key, sizeof key, format, rest);
    va_end(rest);
    return told_of(at, key);
}

int get_u64(const At *at, u64 *out, const char *format, ...)
{
    char key[KEY];
    va_list rest;
    va_start(rest, format);
    vsnprintf(key, sizeof key, format, rest);
    va_end(rest);
    const char *value = told_of(at, key);
    NEEDS(out);
    if (!value)
        return NOT_SUPPORTED;
    *out = strtoull(value, NULL, 0);
    return OK;
}

int get_u32(const At *at, u32 *out, const char *format, ...)
{
    char key[KEY];
    u64 value = 0;
    va_list rest;
    va_start(rest, format);
    vsnprintf(key, sizeof key, format, rest);
    va_end(rest);
    NEEDS(out);
    int code = get_u64(at, &value, "%s", key);
    if (code == OK)
        *out = (u32)value;
    return code;
}

int get_text(const At *at, char *out, size_t size, const char *key)
{
    const char *value = told_of(at, key);
    NEEDS(out);
    if (!value)
        return NOT_SUPPORTED;
    if (strlen(value) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return OK;
}

u64 number(const At *at, const char *key)
{
    u64 value = 0;
    get_u64(at, &value, "%s", key);
    return value;
}
