/*
 * autoclave-gate SOCKET DEVICE SECONDS
 *
 * The container runtime runs this program before it creates a container that gets a GPU (a createRuntime hook of CDI).
 * The program reads the state of the container on standard input, asks the scrub service on SOCKET whether the
 * container may be created with DEVICE, and waits for the answer, at most SECONDS. Exit code 0 means yes. After any
 * other end the runtime creates no container. The sentence on standard error is shown in the events of the pod.
 *
 * Rule 1: the pod is named by annotations that the runtime sets itself. A pod can set none of them: where it could add
 *         those of another runtime, there are two names, and the answer is no.
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

#define VERSION "1"
#define MOST_STATE (1 << 20)
#define MOST_LABELS (64 << 10)
#define MOST_ANSWER 1024
#define MOST_NAME 253 /* characters; the longest name in Kubernetes */
#define MOST_DEPTH 32
#define PAUSE 50 /* milliseconds between two attempts to reach the service */

struct word {
    char text[MOST_NAME + 1];
    size_t length; /* as decoded; more than MOST_NAME if it did not fit */
    bool known;
};

struct owner {
    struct word uid, namespace, pod, container;
};

struct state {
    struct word id;
    struct owner containerd, crio;
    bool annotated, labelled;
};

struct parser {
    const char *at, *end;
    int depth;
};

typedef bool member(struct parser *p, const struct word *key, void *context);

static void spaces(struct parser *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r'))
        p->at++;
}

static bool take(struct parser *p, char wanted)
{
    if (p->at == p->end || *p->at != wanted)
        return false;
    p->at++;
    return true;
}

static void put(char *text, size_t room, size_t *length, char c)
{
    if (*length + 1 < room)
        text[*length] = c;
    (*length)++;
}

/* Four hexadecimal digits. A character outside of ASCII becomes a byte that no name has. */
static bool code(struct parser *p, char *c)
{
    unsigned value = 0;
    for (int digit = 0; digit < 4; digit++, p->at++) {
        if (p->at == p->end)
            return false;
        char h = *p->at;
        if (h >= '0' && h <= '9')
            value = value * 16 + (unsigned)(h - '0');
        else if ((h | 32) >= 'a' && (h | 32) <= 'f')
            value = value * 16 + (unsigned)((h | 32) - 'a') + 10;
        else
            return false;
    }
    *c = value < 0x80 ? (char)value : '\xff';
    return true;
}

static bool escaped(struct parser *p, char *c)
{
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    if (p->at == p->end)
        return false;
    char letter = *p->at++;
    if (letter == 'u')
        return code(p, c);
    const char *found = letter ? strchr(letters, letter) : NULL;
    if (!found)
        return false;
    *c = meanings[found - letters];
    return true;
}

/* A string, decoded. One that is too long is cut off, and its length says so. */
static bool string(struct parser *p, char *text, size_t room, size_t *length)
{
    *length = 0;
    if (!take(p, '"'))
        return false;
    while (p->at < p->end && *p->at != '"') {
        char c = *p->at++;
        if ((unsigned char)c < 0x20 || (c == '\\' && !escaped(p, &c)))
            return false;
        put(text, room, length, c);
    }
    if (room)
        text[*length < room ? *length : room - 1] = 0;
    return take(p, '"');
}

static bool digits(struct parser *p)
{
    const char *first = p->at;
    while (p->at < p->end && *p->at >= '0' && *p->at <= '9')
        p->at++;
    return p->at > first;
}

static bool number(struct parser *p)
{
    take(p, '-');
    if (!take(p, '0') && !digits(p))
        return false;
    if (take(p, '.') && !digits(p))
        return false;
    if (!take(p, 'e') && !take(p, 'E'))
        return true;
    if (!take(p, '-'))
        take(p, '+');
    return digits(p);
}

static bool literal(struct parser *p, const char *name)
{
    size_t length = strlen(name);
    if ((size_t)(p->end - p->at) < length || memcmp(p->at, name, length))
        return false;
    p->at += length;
    return true;
}

static bool value(struct parser *p);

static bool object(struct parser *p, member *each, void *context)
{
    if (++p->depth > MOST_DEPTH || !take(p, '{'))
        return false;
    spaces(p);
    for (bool first = true; !take(p, '}'); first = false) {
        struct word key;
        if (!first && !take(p, ','))
            return false;
        spaces(p);
        if (!string(p, key.text, sizeof key.text, &key.length))
            return false;
        spaces(p);
        if (!take(p, ':'))
            return false;
        spaces(p);
        if (!(each ? each(p, &key, context) : value(p)))
            return false;
        spaces(p);
    }
    p->depth--;
    return true;
}

static bool array(struct parser *p)
{
    if (++p->depth > MOST_DEPTH || !take(p, '['))
        return false;
    spaces(p);
    for (bool first = true; !take(p, ']'); first = false) {
        if (!first && !take(p, ','))
            return false;
        spaces(p);
        if (!value(p))
            return false;
        spaces(p);
    }
    p->depth--;
    return true;
}

static bool value(struct parser *p)
{
    size_t length;
    if (p->at == p->end)
        return false;
    switch (*p->at) {
    case '{':
        return object(p, NULL, NULL);
    case '[':
        return array(p);
    case '"':
        return string(p, NULL, 0, &length);
    case 't':
        return literal(p, "true");
    case 'f':
        return literal(p, "false");
    case 'n':
        return literal(p, "null");
    default:
        return number(p);
    }
}

static bool is(const struct word *key, const char *name)
{
    return key->length == strlen(name) && !memcmp(key->text, name, key->length);
}

/* A value that must be a string and may stand there once. */
static bool once(struct parser *p, struct word *word)
{
    if (word->known)
        return false;
    word->known = true;
    return string(p, word->text, sizeof word->text, &word->length);
}

static bool label(struct parser *p, const struct word *key, void *context)
{
    struct owner *owner = context;
    if (is(key, "io.kubernetes.pod.uid"))
        return once(p, &owner->uid);
    if (is(key, "io.kubernetes.pod.namespace"))
        return once(p, &owner->namespace);
    if (is(key, "io.kubernetes.pod.name"))
        return once(p, &owner->pod);
    if (is(key, "io.kubernetes.container.name"))
        return once(p, &owner->container);
    return value(p);
}

static bool whole(struct parser *p, member *each, void *context)
{
    spaces(p);
    if (!object(p, each, context))
        return false;
    spaces(p);
    return p->at == p->end;
}

/* CRI-O has the labels of the kubelet as a text of their own. */
static bool labels(struct parser *p, struct state *state)
{
    static char text[MOST_LABELS];
    size_t length;
    if (state->labelled || !string(p, text, sizeof text, &length) || length >= sizeof text)
        return false;
    state->labelled = true;
    struct parser inner = {text, text + length, 0};
    return whole(&inner, label, &state->crio);
}

static bool annotation(struct parser *p, const struct word *key, void *context)
{
    struct state *state = context;
    if (is(key, "io.kubernetes.cri.sandbox-uid"))
        return once(p, &state->containerd.uid);
    if (is(key, "io.kubernetes.cri.sandbox-namespace"))
        return once(p, &state->containerd.namespace);
    if (is(key, "io.kubernetes.cri.sandbox-name"))
        return once(p, &state->containerd.pod);
    if (is(key, "io.kubernetes.cri.container-name"))
        return once(p, &state->containerd.container);
    if (is(key, "io.kubernetes.cri-o.Labels"))
        return labels(p, state);
    return value(p);
}

static bool top(struct parser *p, const struct word *key, void *context)
{
    struct state *state = context;
    if (is(key, "id"))
        return once(p, &state->id);
    if (!is(key, "annotations"))
        return value(p);
    if (state->annotated)
        return false;
    state->annotated = true;
    return object(p, annotation, state);
}

/* Only characters that a line of the service's protocol may have. */
static bool plain(const char *text, size_t length)
{
    if (length < 1 || length > MOST_NAME)
        return false;
    for (; length; length--, text++)
        if (!strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-", *text) || !*text)
            return false;
    return true;
}

static bool named(const struct word *word)
{
    return word->known && plain(word->text, word->length);
}

static bool any(const struct owner *owner)
{
    return owner->uid.known || owner->namespace.known || owner->pod.known || owner->container.known;
}

/* Why the state names no container of a pod; NULL if it does. */
static const char *parse(const char *text, size_t length, struct state *state, const struct owner **owner)
{
    struct parser p = {text, text + length, 0};
    if (!whole(&p, top, state))
        return "the container runtime's state of the container cannot be read";
    if (any(&state->containerd) && state->labelled)
        return "the state of the container names its pod in the words of two container runtimes";
    *owner = state->labelled ? &state->crio : &state->containerd;
    if (!named(&state->id) || !named(&(*owner)->uid) || !named(&(*owner)->namespace) || !named(&(*owner)->pod) ||
        !named(&(*owner)->container))
        return "the container runtime names no container of a pod";
    return NULL;
}

#ifndef AUTOCLAVE_GATE_WITHOUT_MAIN

static char input[MOST_STATE];
static struct state state;
static const struct owner *owner;
static long long deadline; /* milliseconds */

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
    if (owner)
        fprintf(stderr, "autoclave: container %s of pod %s/%s is not created: %s\n", owner->container.text,
                owner->namespace.text, owner->pod.text, why);
    else
        fprintf(stderr, "autoclave: the container is not created: %s\n", why);
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
            return "the container runtime did not send the state of the container";
        ssize_t count = read(STDIN_FILENO, input + *length, sizeof input - *length);
        if (count < 0 && errno != EINTR)
            return "the container runtime's state of the container cannot be read";
        if (count == 0)
            return *length < sizeof input ? NULL : "the state of the container is too long";
        if (count > 0)
            *length += (size_t)count;
    }
}

/* One question and its answer. False: the service cannot be reached, or ended before its answer. */
static bool ask(const struct sockaddr_un *service, const char *question, size_t length, char *answer)
{
    int file = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    size_t have = 0;
    bool complete = false;
    if (file >= 0 && !connect(file, (const struct sockaddr *)service, sizeof *service) &&
        send(file, question, length, MSG_NOSIGNAL) == (ssize_t)length)
        while (!complete && have < MOST_ANSWER && ready(file, POLLIN)) {
            ssize_t count = read(file, answer + have, MOST_ANSWER - have);
            if (count < 0 && errno == EINTR)
                continue;
            if (count <= 0)
                break;
            have += (size_t)count;
            complete = answer[have - 1] == '\n';
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
    char question[8 * (MOST_NAME + 1)], answer[MOST_ANSWER + 1];
    size_t length;
    int seconds = count == 4 ? atoi(arguments[3]) : 0;
    if (seconds < 1 || seconds > 3600 || strlen(arguments[1]) >= sizeof service.sun_path ||
        !plain(arguments[2], strlen(arguments[2])))
        return refuse("usage: autoclave-gate SOCKET DEVICE SECONDS");
    deadline = now() + seconds * 1000LL;
    strcpy(service.sun_path, arguments[1]);

    const char *why = read_state(&length);
    if (!why) {
        const struct owner *found = NULL;
        why = parse(input, length, &state, &found);
        if (!why)
            owner = found;
    }
    if (why)
        return refuse(why);
    int size = snprintf(question, sizeof question, VERSION " create %d %s %s %s %s %s %s\n", seconds, arguments[2],
                        owner->uid.text, owner->namespace.text, owner->pod.text, owner->container.text, state.id.text);
    while (!ask(&service, question, (size_t)size, answer)) {
        if (!left())
            return refuse("the scrub service does not answer");
        poll(NULL, 0, PAUSE);
    }
    if (!strcmp(answer, VERSION " yes"))
        return 0;
    if (!strncmp(answer, VERSION " no ", 5) && answer[5])
        return refuse(answer + 5);
    return refuse("the scrub service gave no answer that this program knows");
}

#endif
