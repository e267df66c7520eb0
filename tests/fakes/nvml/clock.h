/* A clock that rises while kernels run, and falls when none did for a second. */
#ifndef CLOCK_H
#define CLOCK_H

#include "state.h"

void clock_launch(int gpu);            /* a kernel runs now */
bool clock_now(int gpu, u32 *out_mhz); /* false: this GPU has no such clock */

#endif
