// The kernels of the scrub: memory is overwritten and read back, then the memory on the chip, then the arithmetic.
//
// All memory is seen as vectors of two 64-bit words (a, b). i is the index of a vector in the whole of what one worker
// holds, so no two vectors of an ADDRESS or KEYED pattern are alike, wherever the allocations lie. Arithmetic is modulo
// 2^64. The page docs/kernels.md says what each kernel promises; tests run them against a model of their own.
//
// Rules: whatever a kernel is not made for ends in a trap, which fails the launch and thereby the job. No kernel
// reports a unit as visited that it has not treated whole.
#include "machine.cuh"

enum : u32 { CONSTANT = 0, ADDRESS = 1, KEYED = 2 };

struct Found {   // of a comparison; the caller sets 0, 2^64-1 and 0
  u64 count;     // bytes that differ
  u64 first;     // the lowest of them: its offset in the whole << 8 | what was read
  u64 compared;  // vectors that were compared: without them, no difference is no answer
};

struct Unit {    // one multiprocessor; the caller sets zeros
  u32 visits;    // blocks that ran on it
  u32 wrong;     // what they found wrong
  u64 digest;    // of the first block that computed there
  u64 compared;  // words that they read: without them, nothing wrong is no answer
};

constexpr u32 UNITS = 1024;     // entries that a caller has room for
constexpr u32 UNROLL = 4;       // accesses in flight per thread
constexpr u32 MAX_BLOCK = 1024;  // any block may come, so the registers must suffice for the largest
constexpr u32 KEPT = 240;       // values that a thread keeps at once; with what handles them, all 255 registers

// ---- patterns

template <u32 KIND>
__device__ __forceinline__ Vector pattern(u64 i, u64 k0, u64 k1) {
  if constexpr (KIND == CONSTANT) return {k0, k1};
  if constexpr (KIND == ADDRESS) return {i ^ k0, ~i ^ k1};
  u64 z = k0 + (i + 1) * 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  const u64 a = z ^ (z >> 31);
  const u64 b = (a ^ k1) * 0xD6E8FEB86659FD93;
  return {a, b ^ (b >> 32)};
}

// ---- passes over memory

__device__ __forceinline__ u64 nth(u64 v, u32 n) { return v + n * static_cast<u64>(blockDim.x); }

// Hands every index below ``vectors`` to exactly one thread, as runs of indices, ``blockDim.x`` apart: blocks
// work on neighbouring stretches, warps on neighbouring vectors. Only the end, which is never a whole run, is guarded.
template <class Deed>
__device__ __forceinline__ void each(u64 vectors, Deed& deed) {
  const u64 stretch = static_cast<u64>(blockDim.x) * UNROLL;
  u64 v = blockIdx.x * stretch + threadIdx.x;
  for (; nth(v, UNROLL - 1) < vectors; v += stretch * gridDim.x) deed.template run<UNROLL>(v);
#pragma unroll 1
  for (u32 n = 0; n < UNROLL - 1; ++n) {
    if (nth(v, n) < vectors) deed.template run<1>(nth(v, n));
  }
}

__device__ __forceinline__ u64 high_bit_of_differing_bytes(u64 difference) {
  constexpr u64 LOW_BITS = 0x7F7F7F7F7F7F7F7F;
  return (((difference & LOW_BITS) + LOW_BITS) | difference) & ~LOW_BITS;
}

// What one thread found, and in how many vectors. Kept in registers until its end, so that memory full of differences
// costs few atomics.
struct Tally {
  u64 count = 0;
  u64 first = ~0ull;
  u64 compared = 0;

  __device__ __forceinline__ void word(u64 offset, u64 difference, u64 expected) {
    if (difference == 0) return;
    const u64 marks = high_bit_of_differing_bytes(difference);
    const u32 byte = static_cast<u32>(__ffsll(static_cast<long long>(marks)) - 1) / 8;
    const u64 place = (offset + byte) << 8 | (((difference ^ expected) >> (8 * byte)) & 0xFF);
    count += static_cast<u32>(__popcll(marks));
    first = place < first ? place : first;
  }

  // What was compared is added up in the block first: every thread has some.
  __device__ __forceinline__ void report(Found* found) const {
    __shared__ u64 together;
    if (threadIdx.x == 0) together = 0;
    __syncthreads();
    if (compared != 0) atomicAdd(&together, compared);
    __syncthreads();
    if (threadIdx.x == 0 && together != 0) atomicAdd(&found->compared, together);
    if (count == 0) return;
    atomicAdd(&found->count, count);
    atomicMin(&found->first, first);
  }
};

template <u32 KIND>
struct Writing {
  Vector* at;
  u64 base, k0, k1;

  template <u32 N>
  __device__ __forceinline__ void run(u64 v) const {
#pragma unroll
    for (u32 n = 0; n < N; ++n) store(at + nth(v, n), pattern<KIND>(base + nth(v, n), k0, k1));
  }
};

// Compares a run that has been read, from where ``place`` says. Only the differences are kept; mostly there are none.
template <u32 KIND>
struct Comparing {
  u64 base, k0, k1;
  Tally tally;

  template <u32 N, class Place>
  __device__ __forceinline__ void run(Vector (&got)[N], u64 v, const Place& place) {
    u64 any = 0;
#pragma unroll
    for (u32 n = 0; n < N; ++n) {
      const Vector want = pattern<KIND>(base + place(v, n), k0, k1);
      got[n] = {got[n].x ^ want.x, got[n].y ^ want.y};
      any |= got[n].x | got[n].y;
    }
    tally.compared += N;
    if (any == 0) return;
    v = unknown(v);  // computed anew: to keep what was expected would cost registers always
#pragma unroll 1
    for (u32 n = 0; n < N; ++n) {
      Vector difference = got[0];  // no index into registers: they have none
#pragma unroll
      for (u32 m = 1; m < N; ++m) difference = n == m ? got[m] : difference;
      const u64 i = base + place(v, n);
      const Vector want = pattern<KIND>(i, k0, k1);
      tally.word(i * 16, difference.x, want.x);
      tally.word(i * 16 + 8, difference.y, want.y);
    }
  }
};

template <u32 KIND>
struct Checking {
  const Vector* at;
  Comparing<KIND> comparing;

  template <u32 N>
  __device__ __forceinline__ void run(u64 v) {
    Vector got[N];
#pragma unroll
    for (u32 n = 0; n < N; ++n) got[n] = load(at + nth(v, n));
    comparing.run(got, v, nth);
  }
};

template <u32 KIND>
struct Inverting {
  Vector* at;
  u64 vectors;
  u32 descending;
  Comparing<KIND> comparing;

  template <u32 N>
  __device__ __forceinline__ void run(u64 v) {
    const auto place = [this](u64 from, u32 n) { return descending ? vectors - 1 - nth(from, n) : nth(from, n); };
    Vector got[N];
#pragma unroll
    for (u32 n = 0; n < N; ++n) got[n] = load_written(at + place(v, n));
    comparing.run(got, v, place);
    v = unknown(v);
#pragma unroll
    for (u32 n = 0; n < N; ++n) {
      store(at + place(v, n), pattern<KIND>(comparing.base + place(v, n), ~comparing.k0, ~comparing.k1));
    }
  }
};

template <u32 KIND>
__device__ __forceinline__ void write_all(Vector* at, u64 vectors, u64 base, u64 k0, u64 k1) {
  Writing<KIND> writing{at, base, k0, k1};
  each(vectors, writing);
}

template <u32 KIND>
__device__ __forceinline__ void check_all(const Vector* at, u64 vectors, u64 base, u64 k0, u64 k1, Found* found) {
  Checking<KIND> checking{at, {base, k0, k1, {}}};
  each(vectors, checking);
  checking.comparing.tally.report(found);
}

template <u32 KIND>
__device__ __forceinline__ void invert_all(Vector* at, u64 vectors, u64 base, u64 k0, u64 k1, u32 descending,
                                           Found* found) {
  Inverting<KIND> inverting{at, vectors, descending, {base, k0, k1, {}}};
  each(vectors, inverting);
  inverting.comparing.tally.report(found);
}

// ---- the memory on the chip

// What one thread read, and how much of that was wrong.
struct Looked {
  u32 wrong = 0;
  u32 compared = 0;

  __device__ __forceinline__ void at(bool bad) {
    wrong += bad;
    ++compared;
  }
};

__device__ __forceinline__ void report(Unit* units, Looked looked) {
  const u32 number = unit_number();
  if (number >= UNITS) __trap();
  if (looked.wrong != 0) atomicAdd(&units[number].wrong, looked.wrong);
  if (looked.compared != 0) atomicAdd(&units[number].compared, static_cast<u64>(looked.compared));
  __syncthreads();  // a visit is one of the whole block
  if (threadIdx.x == 0) atomicAdd(&units[number].visits, 1u);
}

__device__ __forceinline__ u32 word_count() {
  const u32 bytes = shared_bytes();
  if (bytes == 0 || bytes % sizeof(u32) != 0) __trap();
  return bytes / static_cast<u32>(sizeof(u32));
}

template <class Word>
__device__ __forceinline__ void fill_shared(volatile u32* words, u32 count, Word word) {
  for (u32 w = threadIdx.x; w < count; w += blockDim.x) words[w] = word(w);
}

// Every word is written by one thread and, in blocks of more than one, mostly read back by another.
template <class Word>
__device__ __forceinline__ void write_and_read_shared(volatile u32* words, u32 count, Looked& looked, Word word) {
  fill_shared(words, count, word);
  __syncthreads();
  for (u32 w = threadIdx.x; w < count; w += blockDim.x) looked.at(words[count - 1 - w] != word(count - 1 - w));
  __syncthreads();
}

// Each value waits in a register of its own for a barrier, before which it cannot be read back. Values follow from each
// other, so that none can be computed where it is needed instead of being kept.
template <class Next>
__device__ __forceinline__ void hold(u32 first, Looked& looked, Next next) {
  if (blockDim.x != HOLDERS) __trap();
  u32 kept[KEPT];
  u32 value = first;
#pragma unroll
  for (u32 n = 0; n < KEPT; ++n, value = next(value)) kept[n] = through_memory(value);
  __syncthreads();
  value = through_memory(first);
#pragma unroll
  for (u32 n = 0; n < KEPT; ++n, value = next(value)) looked.at(kept[n] != through_memory(value));
}

// ---- arithmetic

// A change of ``bits`` always changes the result: both steps can be undone.
__device__ __forceinline__ u64 folded(u64 digest, u64 bits) {
  digest = (digest ^ bits) * 0x9E3779B97F4A7C15;
  return digest ^ (digest >> 29);
}

__device__ __forceinline__ u64 bits_of(float x, float y) {
  return static_cast<u64>(__float_as_uint(x)) << 32 | __float_as_uint(y);
}

// Operands are in [0.5, 1) and [1, 2), so that every sum stays finite, whatever the bits.
__device__ __forceinline__ float below_one(u32 bits) { return __uint_as_float(0x3F000000u | (bits & 0x7FFFFFu)); }
__device__ __forceinline__ float above_one(u32 bits) { return __uint_as_float(0x3F800000u | (bits & 0x7FFFFFu)); }
__device__ __forceinline__ double doubled(u64 exponent, u64 bits) {
  return __longlong_as_double(static_cast<long long>(exponent | (bits >> 12)));
}
__device__ __forceinline__ u32 halves(u32 bits) { return 0x3C003C00u | (bits & 0x03FF03FFu); }

__device__ __forceinline__ u64 computed(u64 seed, u32 rounds) {
  float single = 1.0f;
  double wide = 1.0;
  float sums[4] = {};
  int whole[2] = {};
  u64 digest = pattern<KEYED>(threadIdx.x, ~seed, seed).x;
  for (u32 round = 0; round < rounds; ++round) {
    const Vector fresh = pattern<KEYED>(static_cast<u64>(round) * blockDim.x + threadIdx.x, seed, ~seed);
    const u32 p = static_cast<u32>(fresh.x), q = static_cast<u32>(fresh.x >> 32);
    const u32 r = static_cast<u32>(fresh.y), s = static_cast<u32>(fresh.y >> 32);
    single = __fmaf_rn(single, below_one(p), above_one(q));
    wide = __fma_rn(wide, doubled(0x3FE0000000000000, fresh.x), doubled(0x3FF0000000000000, fresh.y));
    tensor_halves(sums, halves(p), halves(q), halves(r));
    tensor_bytes(whole, r, s);
    digest = folded(digest, fresh.x + static_cast<u64>(p) * s);
    digest = folded(digest, bits_of(single, special_sine(single)));
    digest = folded(digest, bits_of(special_log(single), special_root(single)));
    digest = folded(digest, static_cast<u64>(__double_as_longlong(wide)));
    digest = folded(digest, bits_of(sums[0], sums[1]));
    digest = folded(digest, bits_of(sums[2], sums[3]));
    digest = folded(digest, static_cast<u64>(static_cast<u32>(whole[0])) << 32 | static_cast<u32>(whole[1]));
  }
  return digest;
}

// ---- what can be launched

extern "C" {

__global__ void __launch_bounds__(MAX_BLOCK)
    write(Vector* at, u64 vectors, u64 base, u32 kind, u64 k0, u64 k1) {
  switch (kind) {
    case CONSTANT: return write_all<CONSTANT>(at, vectors, base, k0, k1);
    case ADDRESS: return write_all<ADDRESS>(at, vectors, base, k0, k1);
    case KEYED: return write_all<KEYED>(at, vectors, base, k0, k1);
    default: __trap();
  }
}

__global__ void __launch_bounds__(MAX_BLOCK)
    check(const Vector* at, u64 vectors, u64 base, u32 kind, u64 k0, u64 k1, Found* found) {
  switch (kind) {
    case CONSTANT: return check_all<CONSTANT>(at, vectors, base, k0, k1, found);
    case ADDRESS: return check_all<ADDRESS>(at, vectors, base, k0, k1, found);
    case KEYED: return check_all<KEYED>(at, vectors, base, k0, k1, found);
    default: __trap();
  }
}

// Kinds 0 and 1, for which the complement is the pattern of the complemented keys.
__global__ void __launch_bounds__(MAX_BLOCK)
    invert(Vector* at, u64 vectors, u64 base, u32 kind, u64 k0, u64 k1, u32 descending, Found* found) {
  switch (kind) {
    case CONSTANT: return invert_all<CONSTANT>(at, vectors, base, k0, k1, descending, found);
    case ADDRESS: return invert_all<ADDRESS>(at, vectors, base, k0, k1, descending, found);
    default: __trap();
  }
}

__global__ void __launch_bounds__(MAX_BLOCK) scratch(u64 key, Unit* units) {
  volatile u32* words = shared_words();
  const u32 count = word_count();
  Looked looked;
  write_and_read_shared(
      words, count, looked, [key](u32 w) { return static_cast<u32>(pattern<KEYED>(w, key, key).x); });
  write_and_read_shared(words, count, looked, [](u32) { return 0u; });
  report(units, looked);
}

__global__ void __launch_bounds__(MAX_BLOCK) plant(u32 canary, Unit* units) {
  fill_shared(shared_words(), word_count(), [canary](u32) { return canary; });
  report(units, {});
}

__global__ void __launch_bounds__(MAX_BLOCK) listen(u32 canary, Unit* units) {
  const volatile u32* words = shared_words();
  const u32 count = word_count();
  Looked looked;
  for (u32 w = threadIdx.x; w < count; w += blockDim.x) looked.at(words[w] == canary);
  report(units, looked);
}

__global__ void __launch_bounds__(HOLDERS, 1) registers(u64 key, Unit* units) {
  const u32 own = static_cast<u32>(pattern<KEYED>(threadIdx.x, key, key).x);
  Looked looked;
  hold(own, looked, [](u32 value) { return value * 1664525u + 1013904223u; });
  hold(0, looked, [](u32 value) { return value; });
  report(units, looked);
}

__global__ void __launch_bounds__(HOLDERS, 1) plant_registers(u32 canary, Unit* units) {
  Looked looked;
  hold(canary, looked, [](u32 value) { return value; });
  report(units, looked);
}

__global__ void __launch_bounds__(HOLDERS, 1) listen_registers(u32 canary, Unit* units) {
  const u32 heard = leftover_registers(canary);  // before all else, which would take registers
  if (blockDim.x != HOLDERS) __trap();
  report(units, {heard, KEPT});
}

__global__ void __launch_bounds__(MAX_BLOCK) exact(u64 seed, u32 rounds, Unit* units) {
  if (blockDim.x % 32 != 0 || rounds == 0) __trap();  // the tensor cores take whole warps
  __shared__ u64 together;
  if (threadIdx.x == 0) together = 0;
  __syncthreads();
  atomicXor(&together, computed(seed, rounds));
  __syncthreads();
  const u32 number = unit_number();
  if (number >= UNITS) __trap();
  u32 wrong = 0;
  if (threadIdx.x == 0) {
    const u64 digest = together == 0 ? 1 : together;
    const u64 earlier = atomicCAS(&units[number].digest, 0ull, digest);
    wrong = earlier != 0 && earlier != digest;
  }
  report(units, {wrong, 0});
}

}  // extern "C"
