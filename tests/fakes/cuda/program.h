// What a program is for the machine: the kernels of one file, as they are written or as they were translated.
#ifndef PROGRAM_H
#define PROGRAM_H

#include <functional>
#include <vector>

#include "emulation.h"

using Deed = std::function<void()>;  // of one thread

struct Kernel {
  const char* name;
  u32 own_shared;  // bytes of shared memory that it declares
  Deed (*with)(void* const* parameters);
};

extern const std::vector<Kernel> KERNELS;

#endif
