// Blocks, fibers, warps.
#include "tests/libmuon/cuda/emulated/block.h"

#include <setjmp.h>
#include <ucontext.h>

#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <vector>

#include "ebb/formats/core/check.h"
#include "tests/libmuon/cuda/emulated/keywords.h"

namespace ebb::emulated {
namespace {

constexpr std::size_t kStack = 256u << 10;

// Where threads run: one after the other, until one of them waits. Begun as a context, and then
// left and gone on with by jumps: a context's switches are system calls.
struct Fiber {
  explicit Fiber(void (*enter)()) {
    EBB_CHECK(getcontext(&context) == 0);
    context.uc_stack.ss_sp = stack.get();
    context.uc_stack.ss_size = kStack;
    makecontext(&context, enter, 0);
  }
  ucontext_t context{};
  jmp_buf place{};  // where it goes on
  bool begun = false;
  std::unique_ptr<std::byte[]> stack = std::make_unique_for_overwrite<std::byte[]>(kStack);
};

enum class State : std::uint8_t { ready, at_barrier, in_warp, done };

struct Thread {
  uint3 index{};
  State state = State::done;
  std::uint64_t given = 0;
  Fiber* fiber = nullptr;  // in which it waits
};

// One kernel at a time, whatever streams there are: what it declares as shared is one place.
struct Machine {
  std::mutex mutex;
  std::minstd_rand random{1};
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Fiber*> idle;
  Fiber* fiber = nullptr;  // that runs
  jmp_buf scheduler{};
  std::vector<Thread> threads;
  std::vector<std::size_t> order;  // in which they get their turns
  std::size_t begun = 0, running = 0, count = 0;
  std::vector<Lanes> taken;  // by warp
  dim3 blocks, sides;
  uint3 block{};
  const std::function<void()>* body = nullptr;
};
Machine& machine() {
  static Machine machine;
  return machine;
}

void to_scheduler() {
  if (_setjmp(machine().fiber->place) == 0) _longjmp(machine().scheduler, 1);
}
void go_on(Fiber* fiber) {
  machine().fiber = fiber;
  if (_setjmp(machine().scheduler) != 0) return;
  if (machine().fiber->begun) _longjmp(machine().fiber->place, 1);
  machine().fiber->begun = true;
  setcontext(&machine().fiber->context);
}

// Of a fiber: the threads that have not begun.
void enter() {
  Machine& all = machine();
  while (true) {
    while (all.begun < all.count) {
      all.running = all.order[all.begun++];
      (*all.body)();
      all.threads[all.running].state = State::done;
    }
    all.idle.push_back(all.fiber);
    to_scheduler();
  }
}

Fiber* idle_fiber() {
  Machine& all = machine();
  if (all.idle.empty()) return all.fibers.emplace_back(std::make_unique<Fiber>(enter)).get();
  Fiber* const idle = all.idle.back();
  all.idle.pop_back();
  return idle;
}

void wait_as(State state) {
  Machine& all = machine();
  Thread& mine = all.threads[all.running];
  mine.state = state;
  mine.fiber = all.fiber;
  to_scheduler();
}

// Lets those of a warp go on that all wait for each other.
bool release_warp(std::size_t warp) {
  Machine& all = machine();
  Lanes numbers{};
  for (std::size_t i = 0; i < 32; ++i) {
    const std::size_t at = warp * 32 + i;
    // All lanes take part, so all must be there.
    if (at >= all.count || all.threads[at].state != State::in_warp) return false;
    numbers[i] = all.threads[at].given;
  }
  all.taken[warp] = numbers;
  for (std::size_t i = 0; i < 32; ++i) all.threads[warp * 32 + i].state = State::ready;
  return true;
}

// Threads that have ended are not waited for.
bool release_barrier() {
  Machine& all = machine();
  bool any = false;
  for (std::size_t i = 0; i < all.count; ++i) {
    if (all.threads[i].state == State::done) continue;
    if (all.threads[i].state != State::at_barrier) return false;
    any = true;
  }
  for (std::size_t i = 0; i < all.count && any; ++i)
    if (all.threads[i].state == State::at_barrier) all.threads[i].state = State::ready;
  return any;
}

void run_ready() {
  Machine& all = machine();
  for (const std::size_t number : all.order) {
    if (all.threads[number].state != State::ready) continue;
    all.running = number;
    go_on(all.threads[number].fiber);
  }
}

void run_block(std::size_t bytes) {
  Machine& all = machine();
  if (bytes > 0) begin_block(all.random(), all.count);
  all.begun = 0;
  while (all.begun < all.count) go_on(idle_fiber());
  while (true) {
    bool goes_on = false;
    for (std::size_t warp = 0; warp * 32 < all.count; ++warp) goes_on |= release_warp(warp);
    if (!goes_on && !release_barrier()) break;
    run_ready();
  }
  // Whoever still waits does so for ever.
  for (const Thread& thread : all.threads) EBB_CHECK(thread.state == State::done);
}

void prepare(dim3 blocks, dim3 sides, const std::function<void()>& body) {
  Machine& all = machine();
  all.blocks = blocks;
  all.sides = sides;
  all.body = &body;
  all.count = std::size_t{sides.x} * sides.y * sides.z;
  EBB_CHECK(all.count <= 1024 && blocks.y <= 65535 && blocks.z <= 65535);
  all.threads.resize(all.count);
  for (unsigned i = 0; i < all.count; ++i)
    all.threads[i].index = {i % sides.x, i / sides.x % sides.y, i / sides.x / sides.y};
  all.order.resize(all.count);
  std::iota(all.order.begin(), all.order.end(), 0);
  all.taken.resize((all.count + 31) / 32);
}

}  // namespace

const uint3& thread() { return machine().threads[machine().running].index; }
const uint3& block() { return machine().block; }
const dim3& blocks() { return machine().blocks; }
const dim3& threads() { return machine().sides; }
unsigned lane() { return static_cast<unsigned>(machine().running % 32); }
std::size_t running() { return machine().running; }

void sync() { wait_as(State::at_barrier); }

const Lanes& meet(std::uint64_t number) {
  Machine& all = machine();
  all.threads[all.running].given = number;
  wait_as(State::in_warp);
  return all.taken[all.running / 32];
}

void run(dim3 blocks, dim3 threads, std::size_t bytes, const std::function<void()>& body) {
  EBB_CHECK(bytes <= kSharedBytes);
  Machine& all = machine();
  const std::lock_guard lock(all.mutex);
  prepare(blocks, threads, body);
  for (unsigned z = 0; z < blocks.z; ++z)
    for (unsigned y = 0; y < blocks.y; ++y)
      for (unsigned x = 0; x < blocks.x; ++x) {
        all.block = {x, y, z};
        std::shuffle(all.order.begin(), all.order.end(), all.random);
        run_block(bytes);
      }
}

}  // namespace ebb::emulated
