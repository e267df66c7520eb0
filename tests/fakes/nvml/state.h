/* What the machine is: "key = value" lines in the file that AUTOCLAVE_FAKE_NVML names, read again when it changes.
 *
 * KEY                     of the machine
 * gpu.G.KEY               of a GPU; a key that is not there is not supported by it
 * gpu.G.gi.I.KEY          of a GPU instance; gpu.G.mig.S.KEY of a slice: see mig.c
 * fail.FUNCTION           the code that a function answers with; FUNCTION may be *
 * hang.FUNCTION           it blocks as long as this file is there
 * gpu.G.fail.FUNCTION     the same for one GPU and its slices; so gpu.G.hang.FUNCTION
 * gpu.G.lost, .reset_required, .absent    1: so it is
 * gpu.G.open_ms           how long it takes to open it, in persistence mode 0, while nobody has it open
 * gpu.G.ramp              its clock rises while kernels run: see clock.c
 * gpu.G.cuda.KEY          what CUDA shows of it: see tests/fakes/cuda/driver/driver.h
 * gpu.G.stubborn.KEY      1: a setting that says yes and stays
 * gpu.G.field.ID[.SCOPE]  a field value; gpu.G.field_fail.ID the code of that field alone
 * event.N                 see events.c
 * root                    the host's files, whose capabilities of slices follow them: see capabilities.c
 * privileged              1: setters are allowed, 0: they are not; not there: root may
 */
#ifndef STATE_H
#define STATE_H

#include <stdbool.h>

#include "abi.h"

enum { KEY = 256 };

const char *state_path(void);                         /* NULL: no such machine */
bool state_refresh(void);                             /* false: there is no state, so there is no driver */
const char *state_find(const char *key);              /* NULL: not known; good until the next refresh */
bool state_says(const char *format, ...) __attribute__((format(printf, 1, 2))); /* the key is there and not 0 */
const char *state_text(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A change is made under a lock that every process takes, and appears at once or not at all. */
bool edit_begin(void);
void edit_set(const char *key, const char *value);
void edit_drop(const char *key);
int edit_end(void);

/* Memory that living processes have taken: see claims.c. NULL: none. */
enum { MOST_CLAIMS = 64 };
typedef struct { u32 pid; u64 bytes; } Claim; /* pid 0: of a process without a name */
int claims_in(const char *folder, Claim *out);
u64 claimed(const char *folder);

#endif
