/* Memory that living processes have taken: numbers in the files of a folder, each locked by its process. Whoever ends
 * loses the lock, however it ends; what it had is free then. */
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include "state.h"

static u64 claim(int folder, const char *name)
{
    char text[32] = "";
    int file = openat(folder, name, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    bool alive = flock(file, LOCK_SH | LOCK_NB) != 0;
    bool said = alive && pread(file, text, sizeof text - 1, 0) > 0;
    close(file);
    return said ? strtoull(text, NULL, 10) : 0;
}

u64 claimed(const char *path)
{
    DIR *folder = path ? opendir(path) : NULL;
    if (!folder)
        return 0;
    u64 sum = 0;
    for (struct dirent *entry; (entry = readdir(folder));)
        if (entry->d_name[0] != '.')
            sum += claim(dirfd(folder), entry->d_name);
    closedir(folder);
    return sum;
}
