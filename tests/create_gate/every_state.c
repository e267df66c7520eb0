/* Reads states, each with its length before it, and prints which container each one names. */
#define AUTOCLAVE_GATE_WITHOUT_MAIN
#include <stdint.h>
#include "autoclave-gate.c"

int main(void)
{
    uint32_t length;
    while (fread(&length, sizeof length, 1, stdin) == 1) {
        char *text = malloc(length); /* exactly as long: a sanitizer sees each byte beyond */
        static struct state state;
        const struct owner *owner = NULL;
        memset(&state, 0, sizeof state);
        if (length && fread(text, length, 1, stdin) != 1)
            return 2;
        if (parse(text, length, &state, &owner))
            printf("no\n");
        else
            printf("%s %s %s %s %s\n", owner->uid.text, owner->namespace.text, owner->pod.text, owner->container.text,
                   state.id.text);
        free(text);
    }
    return 0;
}
