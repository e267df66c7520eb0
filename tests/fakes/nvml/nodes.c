/* A GPU that nobody has open is set up by the driver when it is opened, if its persistence mode is off. */
#define _GNU_SOURCE
#include "nodes.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "state.h"

static bool has_open(const char *process, const struct stat *node)
{
    char path[512];
    struct stat file;
    bool found = false;
    snprintf(path, sizeof path, "/proc/%s/fd", process);
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && !found && (entry = readdir(folder));)
        found = fstatat(dirfd(folder), entry->d_name, &file, 0) == 0 && file.st_ino == node->st_ino &&
                file.st_dev == node->st_dev;
    if (folder)
        closedir(folder);
    return found;
}

static bool is_open(const char *node)
{
    struct stat about;
    bool found = false;
    DIR *processes = stat(node, &about) == 0 ? opendir("/proc") : NULL;
    for (struct dirent *entry; processes && !found && (entry = readdir(processes));)
        found = entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && has_open(entry->d_name, &about);
    if (processes)
        closedir(processes);
    return found;
}

/* Beside the calls of NVML. */
static void note_set_up(int gpu)
{
    const char *path = getenv("AUTOCLAVE_FAKE_NVML_LOG");
    int log = path && *path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;
    if (log < 0)
        return;
    if (dprintf(log, "%d set-up %s\n", getpid(), state_text("gpu.%d.uuid", gpu)) < 0)
        abort();
    close(log);
}

int open_node(int gpu)
{
    const char *node = state_text("gpu.%d.device_file", gpu), *slow = state_text("gpu.%d.open_ms", gpu);
    if (!node)
        return -1;
    if (slow && !state_says("gpu.%d.persistence_mode", gpu) && !is_open(node)) {
        long ms = atol(slow);
        note_set_up(gpu);
        nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
    }
    return open(node, O_RDWR | O_CLOEXEC);
}
