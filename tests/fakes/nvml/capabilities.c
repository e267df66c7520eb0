/* The files that open MIG instances come and go with them, where a host shows any: capabilities.py says which. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "session.h"

enum { PATHS = 4096, FIRST = 3, A_GPU = 135, AN_INSTANCE = 9 };

static void make_folders(char *path)
{
    for (char *at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = 0;
        mkdir(path, 0777);
        *at = '/';
    }
}

static void write_file(char *path, const char *text)
{
    make_folders(path);
    FILE *file = fopen(path, "w");
    if (file) {
        fputs(text, file);
        fclose(file);
    }
}

static bool folder_of(const At *at, int ci, char *out, size_t size)
{
    const char *root = state_text("root"), *minor = state_text("gpu.%d.minor", at->gpu);
    if (!root || !minor)
        return false;
    int length = snprintf(out, size, "%s/proc/driver/nvidia/capabilities/gpu%s/mig/gi%d", root, minor, at->gi);
    if (ci >= 0)
        snprintf(out + length, size - (size_t)length, "/ci%d", ci);
    return true;
}

void capability_shown(const At *at, int ci)
{
    char path[PATHS], text[96];
    if (!folder_of(at, ci, path, sizeof path - sizeof "/access"))
        return;
    strcat(path, "/access");
    int number = FIRST + atoi(state_text("gpu.%d.minor", at->gpu)) * A_GPU + at->gi * AN_INSTANCE + 1 + ci;
    snprintf(text, sizeof text, "DeviceFileMinor: %d\nDeviceFileMode: 256\nDeviceFileModify: 1\n", number);
    write_file(path, text);
    snprintf(path, sizeof path, "%s/dev/nvidia-caps/nvidia-cap%d", state_text("root"), number);
    write_file(path, "");
}
