/* How devices are joined: NVLink, the fabric, the way through the PCIe tree. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "session.h"

enum { MAX_LINKS = 18 };

typedef struct { u32 active, type; char remote[32]; } Link;

/* "ACTIVE TYPE VERSION BUSID" */
static int link_of(const At *at, u32 number, Link *out)
{
    if (number >= MAX_LINKS)
        return INVALID_ARGUMENT;
    const char *value = told(at, "nvlink.%u", number);
    if (!value || sscanf(value, "%u %u %*u %31s", &out->active, &out->type, out->remote) != 3)
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

API int nvmlDeviceGetGpuFabricInfoV(const Handle *device, FabricV2 *out)
{
    ABOUT(device);
    NEEDS(out);
    if (out->version != VERSION(FabricV2, 2))
        return VERSION_MISMATCH;
    cluster(&at, out->cluster);
    out->health = (u32)number(&at, "fabric.health");
    return fabric(&at, &out->state, &out->status, &out->clique);
}
