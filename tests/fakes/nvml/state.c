/* The state file: a sorted list of keys, and changes that several processes may make at a time. */
#define _GNU_SOURCE
#include "state.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct { char *key, *value; } Line;

static Line *lines;
static size_t count, room;
static struct stat seen; /* the file that the lines are from */
static bool loaded;
static int lock = -1;

const char *state_path(void)
{
    const char *path = getenv("AUTOCLAVE_FAKE_NVML");
    return path && *path ? path : NULL;
}

static int by_key(const void *left, const void *right)
{
    return strcmp(((const Line *)left)->key, ((const Line *)right)->key);
}

static Line *line_of(const char *key)
{
    Line wanted = {(char *)key, NULL};
    return count ? bsearch(&wanted, lines, count, sizeof *lines, by_key) : NULL;
}

static void append(const char *key, const char *value)
{
    if (count == room) {
        room = room ? 2 * room : 256;
        lines = realloc(lines, room * sizeof *lines);
        if (!lines)
            abort();
    }
    lines[count++] = (Line){strdup(key), strdup(value)};
}

static void forget(void)
{
    for (size_t i = 0; i < count; i++) {
        free(lines[i].key);
        free(lines[i].value);
    }
    count = 0;
}

static void parse(FILE *file)
{
    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, file) > 0) {
        line[strcspn(line, "\n")] = 0;
        char *between = strstr(line, " = ");
        if (!between)
            continue;
        *between = 0;
        append(line, between + strlen(" = "));
    }
    free(line);
    qsort(lines, count, sizeof *lines, by_key);
}

static bool unchanged(const struct stat *now)
{
    return loaded && now->st_ino == seen.st_ino && now->st_dev == seen.st_dev && now->st_size == seen.st_size &&
           now->st_mtim.tv_sec == seen.st_mtim.tv_sec && now->st_mtim.tv_nsec == seen.st_mtim.tv_nsec;
}

bool state_refresh(void)
{
    struct stat now;
    const char *path = state_path();
    if (!path || stat(path, &now) != 0)
        return loaded = false;
    if (unchanged(&now))
        return true;
    FILE *file = fopen(path, "re");
    if (!file || fstat(fileno(file), &seen) != 0) {
        if (file)
            fclose(file);
        return loaded = false;
    }
    forget();
    parse(file);
    fclose(file);
    return loaded = true;
}

const char *state_find(const char *key)
{
    Line *line = line_of(key);
    return line ? line->value : NULL;
}

const char *state_text(const char *format, ...)
{
    char key[KEY];
    va_list rest;
    va_start(rest, format);
    vsnprintf(key, sizeof key, format, rest);
    va_end(rest);
    return state_find(key);
}

bool state_says(const char *format, ...)
{
    char key[KEY];
    va_list rest;
    va_start(rest, format);
    vsnprintf(key, sizeof key, format, rest);
    va_end(rest);
    const char *value = state_find(key);
    return value && strcmp(value, "0") != 0;
}

bool edit_begin(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s.lock", state_path() ? state_path() : "");
    lock = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0666);
    if (lock < 0)
        return false;
    if (flock(lock, LOCK_EX) == 0 && state_refresh())
        return true;
    close(lock);
    return false;
}

void edit_set(const char *key, const char *value)
{
    Line *line = line_of(key);
    if (!line) {
        append(key, value);
        qsort(lines, count, sizeof *lines, by_key);
        return;
    }
    char *changed = strdup(value); /* before the old one goes: it may be a part of it */
    free(line->value);
    line->value = changed;
}

static void drop(size_t at)
{
    free(lines[at].key);
    free(lines[at].value);
    memmove(lines + at, lines + at + 1, (--count - at) * sizeof *lines);
}

void edit_drop(const char *key)
{
    Line *line = line_of(key);
    if (line)
        drop((size_t)(line - lines));
}

static bool written(const char *path)
{
    FILE *file = fopen(path, "we");
    if (!file)
        return false;
    for (size_t i = 0; i < count; i++)
        fprintf(file, "%s = %s\n", lines[i].key, lines[i].value);
    return fclose(file) == 0;
}

int edit_end(void)
{
    char fresh[4096];
    snprintf(fresh, sizeof fresh, "%s.new", state_path());
    bool good = written(fresh) && rename(fresh, state_path()) == 0;
    loaded = false; /* the file is another one now */
    close(lock);
    return good ? OK : OPERATING_SYSTEM;
}
