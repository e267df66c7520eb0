/*
 * autoclave-gate SOCKET DEVICE SECONDS
 *
 * The container runtime runs this program before it creates a container that gets a GPU (a createRuntime hook of CDI).
 * The program passes the state of the container, which it reads on standard input, to the scrub service on SOCKET. It
 * asks whether the container may be created with DEVICE, and waits for the answer, at most SECONDS. Exit code 0 means
 * yes. After any other end the runtime creates no container. The sentence on standard error is shown in the events of
 * the pod.
 *
 * Rule 1: the program understands nothing of the state. The service reads from it which container it is.
 * Rule 2: no other process is started, because the runtime waits until nobody holds its pipes. No environment is read.
 * Rule 3: the service is asked again if it ends before its answer. It answers a repeated question in the same way.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define VERSION "2"
#define MOST_STATE (1 << 20)
#define MOST_ANSWER 2048
#define MOST_NAME 253 /* characters; the longest name in Kubernetes */
#define PAUSE 50 /* milliseconds between two attempts to reach the service */

static char state[MOST_STATE];
static long long deadline; /* milliseconds */

/* Only characters that a line of the service's protocol may have. */
static bool plain(const char *text)
{
    size_t length = strlen(text);
    return length >= 1 && length <= MOST_NAME &&
           strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == length;
}

static long long now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000LL + time.tv_nsec / 1000000;
}

static int left(void)
{
    long long until = deadline - now();
    return until > 0 ? (int)until : 0;
}

static int refuse(const char *why)
{
    fprintf(stderr, "autoclave: %s\n", why);
    return 1;
}

static bool ready(int file, short events)
{
    struct pollfd poll_for = {file, events, 0};
    int found;
    do
        found = poll(&poll_for, 1, left());
    while (found < 0 && errno == EINTR);
    return found > 0;
}

/* Why the state cannot be read; NULL if it was read. */
static const char *read_state(size_t *length)
{
    for (*length = 0;;) {
        if (!ready(STDIN_FILENO, POLLIN))
            return "the container is not created: the container runtime did not send its state";
        ssize_t count = read(STDIN_FILENO, state + *length, sizeof state - *length);
        if (count < 0 && errno != EINTR)
            return "the container is not created: the container runtime's state of the container cannot be read";
        if (count == 0)
            return *length < sizeof state ? NULL : "the container is not created: its state is too long";
        if (count > 0)
            *length += (size_t)count;
    }
}

static void pass(int file, const char *text, size_t length)
{
    while (length && ready(file, POLLOUT)) {
        ssize_t count = send(file, text, length, MSG_NOSIGNAL);
        if (count < 0 && errno != EINTR && errno != EAGAIN)
            return; /* the service does not want more: it may have answered already */
        if (count > 0) {
            text += count;
            length -= (size_t)count;
        }
    }
}

/* One question and its answer. False: the service cannot be reached, or ended before its answer. */
static bool ask(const struct sockaddr_un *service, const char *question, size_t length, char *answer)
{
    int file = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    size_t have = 0;
    bool complete = false;
    if (file >= 0 && !connect(file, (const struct sockaddr *)service, sizeof *service)) {
        pass(file, question, strlen(question));
        pass(file, state, length);
        while (!complete && have < MOST_ANSWER && ready(file, POLLIN)) {
            ssize_t count = read(file, answer + have, MOST_ANSWER - have);
            if (count < 0 && errno == EINTR)
                continue;
            if (count <= 0)
                break;
            have += (size_t)count;
            complete = answer[have - 1] == '\n';
        }
    }
    if (file >= 0)
        close(file);
    have = complete ? have - 1 : 0;
    for (size_t at = 0; at < have; at++)
        if ((unsigned char)answer[at] < 0x20 || (unsigned char)answer[at] > 0x7e)
            answer[at] = '?';
    answer[have] = 0;
    return complete;
}

int main(int count, char **arguments)
{
    struct sockaddr_un service = {.sun_family = AF_UNIX};
    char question[MOST_NAME + 64], answer[MOST_ANSWER + 1];
    size_t length;
    int seconds = count == 4 ? atoi(arguments[3]) : 0;
    if (seconds < 1 || seconds > 3600 || strlen(arguments[1]) >= sizeof service.sun_path || !plain(arguments[2]))
        return refuse("usage: autoclave-gate SOCKET DEVICE SECONDS");
    deadline = now() + seconds * 1000LL;
    strcpy(service.sun_path, arguments[1]);

    const char *why = read_state(&length);
    if (why)
        return refuse(why);
    snprintf(question, sizeof question, VERSION " create %d %s %zu\n", seconds, arguments[2], length);
    while (!ask(&service, question, length, answer)) {
        if (!left())
            return refuse("the container is not created: the scrub service does not answer");
        poll(NULL, 0, PAUSE);
    }
    if (!strcmp(answer, VERSION " yes"))
        return 0;
    if (!strncmp(answer, VERSION " no ", 5) && answer[5])
        return refuse(answer + 5);
    return refuse("the container is not created: the scrub service gave no answer that this program knows");
}
