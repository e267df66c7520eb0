// What only the machine can say or do: its instructions and special registers, each behind one plain function.
// Tests put an emulation in the place of this header, so nothing else may stand here.
#ifndef MACHINE_CUH
#define MACHINE_CUH

using u32 = unsigned int;
using u64 = unsigned long long;
using Vector = ulonglong2;  // 16 bytes: the widest access of all architectures

constexpr u32 HOLDERS = 256;  // threads of a block that takes the whole register file: 256 x 256 registers

// Reads of a pass over memory far larger than the caches: nothing is worth keeping in L1.
__device__ __forceinline__ Vector load(const Vector* at) {
  Vector v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u64 {%0, %1}, [%2];" : "=l"(v.x), "=l"(v.y) : "l"(at));
  return v;
}

// The same for memory that the kernel itself writes, where the read-only path is not allowed.
__device__ __forceinline__ Vector load_written(const Vector* at) { return __ldcs(at); }

__device__ __forceinline__ void store(Vector* at, Vector v) { __stcs(at, v); }

// The value as it is, but of unknown origin to the compiler: what is computed from it is not merged with anything.
__device__ __forceinline__ u64 unknown(u64 value) {
  asm volatile("" : "+l"(value));
  return value;
}

__device__ __forceinline__ u32 unit_number() {
  u32 number;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(number));
  return number;
}

__device__ __forceinline__ u32 shared_bytes() {
  u32 bytes;
  asm volatile("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
  return bytes;
}

__device__ __forceinline__ volatile u32* shared_words() {
  extern __shared__ u32 words[];
  return words;
}

// The value, through memory: each call is one write and one read that may not be left out, merged or moved across a
// barrier, so the result must sit in a register of its own until it is used.
__device__ __forceinline__ u32 through_memory(u32 value) {
  __shared__ volatile u32 slot[HOLDERS];
  slot[threadIdx.x] = value;
  return slot[threadIdx.x];
}

// How many of 240 registers hold the canary that nothing has written since the block began.
//
// Registers that are merely left unset do not do: the assembler takes one register for all of them. Here each is
// changed in a loop, by a value of its own that it cannot know (always 0), and the loop runs once: each must have a
// place of its own, and what is compared is what was in that place.
#define TEN(DO, n) DO(n##0) DO(n##1) DO(n##2) DO(n##3) DO(n##4) DO(n##5) DO(n##6) DO(n##7) DO(n##8) DO(n##9)
#define HUNDRED(DO, n) \
  TEN(DO, n##0) TEN(DO, n##1) TEN(DO, n##2) TEN(DO, n##3) TEN(DO, n##4) \
  TEN(DO, n##5) TEN(DO, n##6) TEN(DO, n##7) TEN(DO, n##8) TEN(DO, n##9)
#define EACH_REGISTER(DO) HUNDRED(DO, 1) HUNDRED(DO, 2) TEN(DO, 30) TEN(DO, 31) TEN(DO, 32) TEN(DO, 33)
#define TOUCH(n) "ld.volatile.shared.u32 nothing, [%2];\n xor.b32 left" #n ", left" #n ", nothing;\n"
#define COMPARE(n) "setp.eq.u32 same, left" #n ", %1;\n @same add.u32 %0, %0, 1;\n"

__device__ __forceinline__ u32 leftover_registers(u32 canary) {
  __shared__ u32 zero;
  zero = 0;
  const u32 at = static_cast<u32>(__cvta_generic_to_shared(&zero));
  u32 found = 0;
  asm volatile(
      "{\n .reg .b32 left<340>;\n .reg .b32 nothing;\n .reg .pred same;\n"
      "again:\n" EACH_REGISTER(TOUCH)
      "ld.volatile.shared.u32 nothing, [%2];\n setp.ne.u32 same, nothing, 0;\n @same bra again;\n"
      EACH_REGISTER(COMPARE) "}"
      : "+r"(found)
      : "r"(canary), "r"(at)
      : "memory");
  return found;
}

#undef TEN
#undef HUNDRED
#undef EACH_REGISTER
#undef TOUCH
#undef COMPARE

// Special functions, by the unit that computes them approximately.
__device__ __forceinline__ float special_sine(float x) { return __sinf(x); }
__device__ __forceinline__ float special_log(float x) { return __log2f(x); }
__device__ __forceinline__ float special_root(float x) { return rsqrtf(x); }

// One step of the tensor cores: sums += A x B, 16 x 8 x 8 in halves with sums in floats. By a whole warp.
__device__ __forceinline__ void tensor_halves(float (&sums)[4], u32 a0, u32 a1, u32 b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a0), "r"(a1), "r"(b));
}

// The same, 8 x 8 x 16 in signed bytes with whole sums.
__device__ __forceinline__ void tensor_bytes(int (&sums)[2], u32 a, u32 b) {
  asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
               : "+r"(sums[0]), "+r"(sums[1])
               : "r"(a), "r"(b));
}

#endif
