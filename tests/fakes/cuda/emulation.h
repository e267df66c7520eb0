// The GPU as one host thread: stands in the place of kernels/machine.cuh, so that the kernels run as they are written.
//
// Blocks run one after the other; the threads of a block take turns, each until its next barrier: from the first one up
// and, in every second block, from the last one down. A tensor step waits for its warp alone. Shared memory belongs to a
// unit and outlives the blocks on it, as on a real chip. A fault that a test plants happens where it says.
#ifndef MACHINE_CUH
#define MACHINE_CUH

#include <cmath>
#include <cstddef>
#include <cstring>
#include <utility>

using u32 = unsigned int;
using u64 = unsigned long long;

struct ulonglong2 {
  u64 x, y;
};
using Vector = ulonglong2;

constexpr u32 HOLDERS = 256;

// What a fault can be planted in: the memory on the chip, and the results of each kind of arithmetic.
enum Where : u32 { NOWHERE, SHARED, REGISTER, SUM, WIDE, SINE, LOGARITHM, ROOT, HALVES, BYTES, KINDS };

struct Index {
  u32 x;
};
extern Index gridDim, blockDim, blockIdx, threadIdx;

// What the kernels ask of the machine; emulation.cpp answers.
void barrier();
[[noreturn]] void trap();
Vector emulated_read(const Vector* at);
u32 emulated_unit();
u32 emulated_shared_bytes();
volatile u32* emulated_shared();
u32 emulated_leftovers();
u32 spoiled(Where kind, u32 bits);
u32 emulated_unwritten();    // what a register holds that nothing has written: another value in each launch and thread
bool included(u32 address);  // whether the instruction there runs
void tensor(float (&sums)[4], u32 a0, u32 a1, u32 b);
void tensor(int (&sums)[2], u32 a, u32 b);

#define __global__ static
#define __device__ inline
#define __forceinline__
#define __launch_bounds__(...)
#define __shared__ static
#define __syncthreads barrier
#define __trap trap

template <class T>
T atomicAdd(T* at, T value) {
  const T before = *at;
  *at += value;
  return before;
}

inline u64 atomicXor(u64* at, u64 value) {
  const u64 before = *at;
  *at ^= value;
  return before;
}

inline u64 atomicMin(u64* at, u64 value) {
  const u64 before = *at;
  *at = value < before ? value : before;
  return before;
}

inline u64 atomicCAS(u64* at, u64 expected, u64 value) {
  const u64 before = *at;
  if (before == expected) *at = value;
  return before;
}

template <class To, class From>
To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __popcll(u64 x) { return __builtin_popcountll(x); }
inline u32 __float_as_uint(float x) { return same_bits<u32>(x); }
inline float __uint_as_float(u32 x) { return same_bits<float>(x); }
inline long long __double_as_longlong(double x) { return same_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return same_bits<double>(x); }
inline float spoiled(Where kind, float x) { return same_bits<float>(spoiled(kind, same_bits<u32>(x))); }
inline float __fmaf_rn(float x, float y, float z) { return spoiled(SUM, std::fma(x, y, z)); }
inline double __fma_rn(double x, double y, double z) {
  const u64 bits = same_bits<u64>(std::fma(x, y, z));
  return same_bits<double>(bits >> 32 << 32 | spoiled(WIDE, static_cast<u32>(bits)));
}

inline Vector load(const Vector* at) { return *at; }
inline Vector load_written(const Vector* at) { return emulated_read(at); }
inline void store(Vector* at, Vector v) { *at = v; }
inline u64 unknown(u64 value) { return value; }
inline u32 unit_number() { return emulated_unit(); }
inline u32 shared_bytes() { return emulated_shared_bytes(); }
inline volatile u32* shared_words() { return emulated_shared(); }
inline u32 through_memory(u32 value) { return spoiled(REGISTER, value); }
inline u32 leftover_registers(u32) { return emulated_leftovers(); }
inline float toward_zero(double exact) {
  const float nearest = static_cast<float>(exact);
  return std::abs(static_cast<double>(nearest)) > std::abs(exact) ? std::nextafter(nearest, 0.0f) : nearest;
}
inline float sine_of_turns(float x) { return spoiled(SINE, std::sin(x * 6.2831853f)); }
inline float special_sine(float x) { return sine_of_turns(toward_zero(static_cast<double>(x) * 0.15915494f)); }
inline float special_log(float x) { return spoiled(LOGARITHM, std::log2(x)); }
inline float special_root(float x) { return spoiled(ROOT, 1 / std::sqrt(x)); }
inline void tensor_halves(float (&sums)[4], u32 a0, u32 a1, u32 b) { tensor(sums, a0, a1, b); }
inline void tensor_bytes(int (&sums)[2], u32 a, u32 b) { tensor(sums, a, b); }

#endif
