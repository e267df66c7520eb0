// What translated code asks of the machine beside emulation.h. Each instruction is one statement of one thread.
//
// A thread is a warp of its own: a vote and a sum over the warp see this thread alone, and it leads every election.
#ifndef MACHINE_CODE_H
#define MACHINE_CODE_H

#include <algorithm>
#include <bit>
#include <iterator>

#include "program.h"

// Registers before anything is written to them.
template <std::size_t N>
void begin(bool (&predicates)[N]) {
  std::fill(std::begin(predicates), std::end(predicates), (emulated_unwritten() & 1) != 0);
}
template <std::size_t N>
void begin(u32 (&words)[N]) {
  std::fill(std::begin(words), std::end(words), emulated_unwritten());
}
template <std::size_t N>
void begin(u64 (&words)[N]) {
  std::fill(std::begin(words), std::end(words), static_cast<u64>(emulated_unwritten()) << 32 | emulated_unwritten());
}
template <std::size_t N>
void begin(float (&numbers)[N]) {
  std::fill(std::begin(numbers), std::end(numbers), same_bits<float>(emulated_unwritten()));
}
template <std::size_t N>
void begin(double (&numbers)[N]) {
  std::fill(std::begin(numbers), std::end(numbers), same_bits<double>(u64{emulated_unwritten()} << 32));
}

// The arguments of a launch, each at the place that the code reads it from.
struct Arguments {
  alignas(8) unsigned char bytes[128];

  template <class T>
  T at(u32 offset) const {
    T value;
    std::memcpy(&value, bytes + offset, sizeof value);
    return value;
  }
};

inline u64 pair(u32 low, u32 high) { return static_cast<u64>(high) << 32 | low; }
inline u32 lane() { return threadIdx.x % 32; }
inline u32 highest_bit(u32 x) { return 31u - static_cast<u32>(std::countl_zero(x)); }  // of 0: all ones
inline u32 count_bits(u32 x) { return static_cast<u32>(std::popcount(x)); }
inline u64 shifted_left(u64 x, u32 bits) { return bits < 64 ? x << bits : 0; }
inline u64 shifted_right(u64 x, u32 bits) { return bits < 64 ? x >> bits : 0; }
inline float real(u32 bits) { return same_bits<float>(bits); }
inline u32 bits_of(float x) { return same_bits<u32>(x); }
inline float upward(u32 exact) {
  const float nearest = static_cast<float>(exact);
  return static_cast<double>(nearest) < exact ? std::nextafter(nearest, 0x1p33f) : nearest;
}
inline u32 whole(float x) { return x >= 0x1p32f ? ~0u : x > 0 ? static_cast<u32>(x) : 0; }

// What newer code names with each address, as it finds it among the constants. Without it, memory is not the device's.
constexpr u64 DESCRIPTOR = 0xDE5C00000000D1CE;
inline u64 described(u64 descriptor, u64 address) {
  if (descriptor != DESCRIPTOR) trap();
  return address;
}

// Memory of the device. An address that is not a multiple of the size is an error there, too.
template <class T>
T& global(u64 address) {
  if (address % sizeof(T) != 0) trap();
  return *reinterpret_cast<T*>(address);
}

// Shared memory: first what the kernel declares, then what the launch gave. Nothing else can be reached.
alignas(16) inline unsigned char own_memory[4096];

template <class T>
T& shared(u32 own, u32 offset) {
  const u64 end = static_cast<u64>(offset) + sizeof(T);
  if (offset % sizeof(T) != 0 || end > static_cast<u64>(own) + emulated_shared_bytes()) trap();
  if (end <= own) return *reinterpret_cast<T*>(own_memory + offset);
  return *reinterpret_cast<T*>(reinterpret_cast<unsigned char*>(const_cast<u32*>(emulated_shared())) + offset - own);
}

// The kernels that hold values in registers pass each of them through a word of their own memory.
inline u32 shared_word(u32 own, u32 offset) {
  const u32 value = shared<u32>(own, offset);
  return offset < own ? spoiled(REGISTER, value) : value;
}

// Whether the value was as expected, and is therefore replaced.
inline bool replaced(u64& at, u64 expected, u64 value) {
  const bool equal = at == expected;
  if (equal) at = value;
  return equal;
}

inline void take(u32* to, Vector v) {
  to[0] = static_cast<u32>(v.x), to[1] = static_cast<u32>(v.x >> 32);
  to[2] = static_cast<u32>(v.y), to[3] = static_cast<u32>(v.y >> 32);
}
inline Vector vector(const u32* from) { return {pair(from[0], from[1]), pair(from[2], from[3])}; }

#endif
