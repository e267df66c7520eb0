// The kernels as they are written in scrub.cu.
#include "program.h"

#include SCRUB_SOURCE

namespace {

template <auto RUN, class... T, std::size_t... I>
Deed bound(void* const* parameters, std::index_sequence<I...>) {
  return [... words = *static_cast<T*>(parameters[I])] { RUN(words...); };
}

template <auto RUN, class... T>
Deed with(void* const* parameters) {
  return bound<RUN, T...>(parameters, std::index_sequence_for<T...>());
}

template <auto RUN, class... T>
constexpr Kernel kernel(const char* name, u32 own_shared, void (*)(T...)) {
  return {name, own_shared, with<RUN, T...>};
}

}  // namespace

#define KERNEL(name, own_shared) kernel<name>(#name, own_shared, name)

const std::vector<Kernel> KERNELS = {
    KERNEL(write, 0),
    KERNEL(check, 8),
    KERNEL(invert, 8),
    KERNEL(scratch, 0),
    KERNEL(plant, 0),
    KERNEL(listen, 0),
    KERNEL(registers, 1024),
    KERNEL(plant_registers, 1024),
    KERNEL(listen_registers, 4),
    KERNEL(exact, 8),
};
