/* How devices are joined: NVLink, the fabric, the way through the PCIe tree. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "session.h"

enum { MAX_LINKS = 18, FAR_APART = 50, P2P_CAPS = 6 };

typedef struct { u32 active, type, version; char remote[32]; } Link;

/* "ACTIVE TYPE VERSION BUSID" */
static int link_of(const At *at, u32 number, Link *out)
{
    if (number >= MAX_LINKS)
        return INVALID_ARGUMENT;
    const char *value = told(at, "nvlink.%u", number);
    if (!value || sscanf(value, "%u %u %u %31s", &out->active, &out->type, &out->version, out->remote) != 4)
        return NOT_SUPPORTED;
    return OK;
}

#define OF_LINK(symbol, part)                                                                                          \
    API int symbol(const Handle *device, u32 number, u32 *out)                                                         \
    {                                                                                                                  \
        ABOUT(device);                                                                                                 \
        Link link;                                                                                                     \
        NEEDS(out);                                                                                                    \
        int code = link_of(&at, number, &link);                                                                        \
        if (code == OK)                                                                                                \
            *out = link.part;                                                                                          \
        return code;                                                                                                   \
    }

OF_LINK(nvmlDeviceGetNvLinkState, active)
OF_LINK(nvmlDeviceGetNvLinkVersion, version)
OF_LINK(nvmlDeviceGetNvLinkRemoteDeviceType, type)

API int nvmlDeviceGetNvLinkRemotePciInfo_v2(const Handle *device, u32 number, Pci *out)
{
    ABOUT(device);
    Link link;
    NEEDS(out);
    int code = link_of(&at, number, &link);
    if (code)
        return code;
    *out = (Pci){0};
    if (sscanf(link.remote, "%x:%x:%x", &out->domain, &out->bus, &out->device) != 3)
        return NOT_SUPPORTED;
    snprintf(out->bus_id, sizeof out->bus_id, "%s", link.remote);
    return OK;
}

static int other_gpu(const At *at, const Handle *other)
{
    int gpu = other ? find_gpu(other) : -1;
    return gpu == at->gpu ? -1 : gpu;
}

/* Of a pair, else of every pair. */
static u32 between(const At *at, int other, const char *what, u32 otherwise)
{
    int low = at->gpu < other ? at->gpu : other, high = at->gpu < other ? other : at->gpu;
    const char *value = state_text("%s.%d.%d", what, low, high);
    if (!value)
        value = state_find(what);
    return value ? (u32)atoi(value) : otherwise;
}

API int nvmlDeviceGetTopologyCommonAncestor(const Handle *device, const Handle *other, u32 *out)
{
    ABOUT_GPU(device);
    int neighbour = other_gpu(&at, other);
    if (neighbour < 0 || !out)
        return INVALID_ARGUMENT;
    *out = between(&at, neighbour, "topology", FAR_APART);
    return OK;
}

API int nvmlDeviceGetP2PStatus(const Handle *device, const Handle *other, u32 capability, u32 *out)
{
    ABOUT_GPU(device);
    int neighbour = other_gpu(&at, other);
    if (neighbour < 0 || !out || capability >= P2P_CAPS)
        return INVALID_ARGUMENT;
    char what[32];
    snprintf(what, sizeof what, "p2p.cap%u", capability);
    *out = between(&at, neighbour, what, 0);
    return OK;
}

static void cluster(const At *at, unsigned char *out)
{
    const char *hex = told(at, "fabric.cluster");
    for (size_t i = 0; i < 16; i++) {
        unsigned byte = 0;
        if (hex && strlen(hex) >= 2 * i + 2)
            sscanf(hex + 2 * i, "%2x", &byte);
        out[i] = (unsigned char)byte;
    }
}

static int fabric(const At *at, u32 *state, u32 *status, u32 *clique)
{
    *status = (u32)number(at, "fabric.status");
    *clique = (u32)number(at, "fabric.clique");
    return get_u32(at, state, "fabric.state");
}

API int nvmlDeviceGetGpuFabricInfo(const Handle *device, Fabric *out)
{
    ABOUT(device);
    NEEDS(out);
    cluster(&at, out->cluster);
    return fabric(&at, &out->state, &out->status, &out->clique);
}

/* The second and the third version differ in what comes last. */
API int nvmlDeviceGetGpuFabricInfoV(const Handle *device, FabricV3 *out)
{
    ABOUT(device);
    NEEDS(out);
    bool third = out->version == VERSION(FabricV3, 3);
    if (!third && out->version != VERSION(FabricV2, 2))
        return VERSION_MISMATCH;
    cluster(&at, out->cluster);
    out->health = (u32)number(&at, "fabric.health");
    if (third)
        out->summary = (unsigned char)number(&at, "fabric.summary");
    return fabric(&at, &out->state, &out->status, &out->clique);
}
