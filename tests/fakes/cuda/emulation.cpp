// The machine of emulation.h. The program that is linked with it has the kernels: see program.h.
#include "emulation.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "launch.h"
#include "program.h"

Index gridDim, blockDim, blockIdx, threadIdx;

// Continues on the other stack where that one stopped, and returns when another call continues on this one. It makes no
// system call; swapcontext would make two for each step of a thread.
extern "C" void change_stack(void** from, void* to);
#if defined(__x86_64__)
asm(R"(
.text
.globl change_stack
.hidden change_stack
change_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
#else
#error "the emulation knows the stacks of x86-64 only"
#endif

namespace {

constexpr std::size_t SAVED = 6;  // registers

enum Waits { NOT, FOR_WARP, FOR_BLOCK };  // a thread that has ended waits for nothing more than its block

struct Thread {
  void* top;
  std::unique_ptr<char[]> stack;
  bool done;
  Waits waits;
  std::array<u32, KINDS> results;
};

constexpr std::size_t STACK = 64 * 1024;
constexpr u32 WARP = 32;

const Launch* launch;
void* turn_taker;
std::vector<Thread> threads;
Deed kernel;
bool trapped;
std::vector<const Vector*> reads;  // of memory that is written too, in order
std::map<u32, std::vector<u32>> shared_of_units;
u32* kept;       // the shared memory of all units, where somebody else keeps it; null: it is here
u32 kept_words;  // of a unit
std::array<std::array<u32, 3>, 1024> operands;  // of the warps' tensor steps, by thread
u32 launches;
std::string maimed;  // the kernel that runs without one of its instructions
u32 omitted;         // the address of that instruction
bool whole = true;   // whether the kernel that runs has all of its instructions

u32* shared_of_unit() {
  if (kept != nullptr) return kept + emulated_unit() * kept_words;
  std::vector<u32>& words = shared_of_units[emulated_unit()];
  if (words.size() * sizeof(u32) < launch->shared_bytes) words.resize(launch->shared_bytes / sizeof(u32) + 1);
  return words.data();
}

bool strikes(Where where, u32 moment) {
  const Fault& fault = launch->fault;
  return fault.where == where && fault.block == blockIdx.x && fault.moment == moment;
}

void begin_thread() {
  kernel();
  threads[threadIdx.x].done = true;
  barrier();
}

void* fresh(char* stack) {
  void** top = reinterpret_cast<void**>(stack + STACK) - 1;  // as a call leaves it: a return address below 16 bytes
  *--top = reinterpret_cast<void*>(begin_thread);
  return top - SAVED;
}

void wait(Waits until) {
  Thread& thread = threads[threadIdx.x];
  thread.waits = until;
  change_stack(&thread.top, turn_taker);
}

// Lets the threads of a warp run, each until it waits for its block; those from ``begin`` on, in this order.
void run_warp(u32 begin, u32 size, bool upwards) {
  for (bool exchanging = true; exchanging && !trapped;) {
    exchanging = false;
    for (u32 n = 0; n < size && !trapped; ++n) {
      threadIdx.x = begin + (upwards ? n : size - 1 - n);
      Thread& thread = threads[threadIdx.x];
      if (thread.done || thread.waits == FOR_BLOCK) continue;
      change_stack(&turn_taker, thread.top);
      exchanging = exchanging || thread.waits == FOR_WARP;
    }
  }
}

// Every second block begins with its last thread: a result that depends on the order, for want of a barrier, differs.
void run_block() {
  const u32 size = launch->block, warps = (size + WARP - 1) / WARP;
  const bool upwards = blockIdx.x % 2 == 0;
  if (threads.size() < size) threads.resize(size);
  for (u32 t = 0; t < size; ++t) {
    Thread& thread = threads[t];
    if (thread.stack == nullptr) thread.stack.reset(new char[STACK]);
    thread.done = false;
    thread.results.fill(0);
    thread.top = fresh(thread.stack.get());
  }
  bool running = true;
  for (u32 barriers = 0; running && !trapped; ++barriers) {
    running = false;
    for (u32 t = 0; t < size; ++t) threads[t].waits = NOT;
    for (u32 n = 0; n < warps && !trapped; ++n) {
      const u32 begin = (upwards ? n : warps - 1 - n) * WARP;
      run_warp(begin, std::min(WARP, size - begin), upwards);
    }
    for (u32 t = 0; t < size; ++t) running = running || !threads[t].done;
    if (strikes(SHARED, barriers)) shared_of_unit()[launch->fault.place] ^= launch->fault.flip;
  }
}

int run(const Launch* what, const Kernel& one, Deed deed) {
  launch = what;
  kernel = std::move(deed);
  whole = one.name != maimed;
  trapped = false;
  reads.clear();
  ++launches;
  gridDim.x = what->grid;
  blockDim.x = what->block;
  for (u32 b = what->first_block; b < what->grid && !trapped; ++b) {
    blockIdx.x = b;
    run_block();
  }
  return trapped ? TRAPPED : DONE;
}

const Kernel* named(const char* name) {
  for (const Kernel& one : KERNELS) {
    if (std::strcmp(one.name, name) == 0) return &one;
  }
  return nullptr;
}

// Sets down the operands of this thread, and waits until all of its warp have done so.
void exchange(u32 a0, u32 a1, u32 b) {
  wait(FOR_WARP);
  operands[threadIdx.x] = {a0, a1, b};
  wait(FOR_WARP);
}

float half(u32 pair, u32 which) {  // of those that occur: in [1, 2)
  return 1 + static_cast<float>(pair >> (16 * which) & 0x3FF) / 1024;
}

int byte(u32 four, u32 which) { return static_cast<signed char>(four >> (8 * which) & 0xFF); }

}  // namespace

void barrier() { wait(FOR_BLOCK); }

void trap() {
  trapped = true;
  barrier();
  __builtin_unreachable();
}

Vector emulated_read(const Vector* at) {
  reads.push_back(at);
  return *at;
}

u32 emulated_unit() {
  const u32 unit = launch->unit_of_block == nullptr ? blockIdx.x % launch->units : launch->unit_of_block[blockIdx.x];
  return launch->first_unit + unit;
}
u32 emulated_shared_bytes() { return launch->shared_bytes; }
volatile u32* emulated_shared() { return shared_of_unit(); }
u32 emulated_unwritten() {
  constexpr u32 HELD[] = {0, ~0u, 0xDEADBEA7, 2};
  return HELD[(launches + threadIdx.x) % std::size(HELD)];
}
bool included(u32 address) { return whole || address != omitted; }
u32 emulated_leftovers() { return launch->leftovers; }

u32 spoiled(Where kind, u32 bits) {
  const u32 moment = threads[threadIdx.x].results[kind]++;
  const u32 place = launch->fault.place, thread = threadIdx.x;
  const bool hit = (place & EACH) != 0 ? (place & ~EACH) == thread % 16 && strikes(kind, moment - thread)
                                       : place == thread && strikes(kind, moment);
  return hit ? bits ^ launch->fault.flip : bits;
}

// Which lane holds what is as the PTX manual lays it out for m16n8k8 and m8n8k16.
void tensor(float (&sums)[4], u32 a0, u32 a1, u32 b) {
  exchange(a0, a1, b);
  const u32 warp = threadIdx.x / 32 * 32, group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
  for (u32 n = 0; n < 4; ++n) {
    for (u32 k = 0; k < 8; ++k) {
      const u32 left = operands[warp + group * 4 + k / 2][n / 2];
      const u32 right = operands[warp + (pair * 2 + n % 2) * 4 + k / 2][2];
      sums[n] += half(left, k % 2) * half(right, k % 2);
    }
    sums[n] = spoiled(HALVES, sums[n]);
  }
}

void tensor(int (&sums)[2], u32 a, u32 b) {
  exchange(a, 0, b);
  const u32 warp = threadIdx.x / 32 * 32, group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
  for (u32 n = 0; n < 2; ++n) {
    for (u32 k = 0; k < 16; ++k) {
      const u32 left = operands[warp + group * 4 + k / 4][0];
      const u32 right = operands[warp + (pair * 2 + n) * 4 + k / 4][2];
      sums[n] += byte(left, k % 4) * byte(right, k % 4);
    }
    sums[n] = static_cast<int>(spoiled(BYTES, static_cast<u32>(sums[n])));
  }
}

extern "C" {

// Tells the n-th read of the last launch that inverted; null after the last one.
const Vector* emulated_nth_read(u64 n) { return n < reads.size() ? reads[n] : nullptr; }

// Runs a kernel to its end, one thread at a time; ``parameters`` are the addresses of its arguments.
int emulate(const char* name, const Launch* what, void* const* parameters) {
  const Kernel* one = named(name);
  return one == nullptr ? NO_KERNEL : run(what, *one, one->with(parameters));
}

// The shared memory that a kernel declares itself, in bytes; -1: there is no such kernel.
int emulated_own_shared(const char* name) {
  const Kernel* one = named(name);
  return one == nullptr ? -1 : static_cast<int>(one->own_shared);
}

// Keeps the shared memory of the units there from now on, so many bytes of each; null: here.
void emulated_keep_shared(u32* there, u32 bytes) {
  kept = there;
  kept_words = bytes / sizeof(u32);
}

// Leaves out one instruction of a kernel from now on, if the translation says that it can be; "": none.
void emulated_omit(const char* kernel_name, u32 address) {
  maimed = kernel_name;
  omitted = address;
}

}  // extern "C"
