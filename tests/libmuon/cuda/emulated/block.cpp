// Blocks, fibers, warps.
#include "tests/libmuon/cuda/emulated/block.h"

#include <ucontext.h>

#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "ebb/formats/core/check.h"
#include "tests/libmuon/cuda/emulated/keywords.h"

namespace ebb::emulated {
namespace {

constexpr std::size_t kStack = 256u << 10;

enum class State : std::uint8_t { ready, at_barrier, in_warp, done };

struct Fiber {
  ucontext_t context{};
  std::unique_ptr<std::byte[]> stack;
  uint3 index{};
  State state = State::done;
  std::uint64_t given = 0;
};

// One kernel at a time, whatever streams there are: what it declares as shared is one place.
struct Machine {
  std::mutex mutex;
  std::minstd_rand random{1};
  std::vector<Fiber> fibers;
  std::vector<Lanes> taken;  // by warp
  ucontext_t scheduler{};
  std::size_t running = 0;
  std::size_t count = 0;
  dim3 blocks, threads;
  uint3 block{};
  const std::function<void()>* body = nullptr;
};
Machine& machine() {
  static Machine machine;
  return machine;
}

void enter() {
  Machine& all = machine();
  (*all.body)();
  all.fibers[all.running].state = State::done;
}

void wait_as(State state) {
  Machine& all = machine();
  Fiber& mine = all.fibers[all.running];
  mine.state = state;
  EBB_CHECK(swapcontext(&mine.context, &all.scheduler) == 0);
}

void prepare(Fiber& fiber, std::size_t number, dim3 threads) {
  Machine& all = machine();
  if (fiber.stack == nullptr) fiber.stack = std::make_unique<std::byte[]>(kStack);
  EBB_CHECK(getcontext(&fiber.context) == 0);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStack;
  fiber.context.uc_link = &all.scheduler;
  makecontext(&fiber.context, enter, 0);
  const auto x = static_cast<unsigned>(number);
  fiber.index = {x % threads.x, x / threads.x % threads.y, x / threads.x / threads.y};
  fiber.state = State::ready;
}

// Lets those of a warp go on that all wait for each other.
bool release_warp(std::size_t warp) {
  Machine& all = machine();
  Lanes numbers{};
  for (std::size_t i = 0; i < 32; ++i) {
    const std::size_t at = warp * 32 + i;
    // All lanes take part, so all must be there.
    if (at >= all.count || all.fibers[at].state != State::in_warp) return false;
    numbers[i] = all.fibers[at].given;
  }
  all.taken[warp] = numbers;
  for (std::size_t i = 0; i < 32; ++i) all.fibers[warp * 32 + i].state = State::ready;
  return true;
}

// Threads that have ended are not waited for.
bool release_barrier() {
  Machine& all = machine();
  bool any = false;
  for (std::size_t i = 0; i < all.count; ++i) {
    if (all.fibers[i].state == State::done) continue;
    if (all.fibers[i].state != State::at_barrier) return false;
    any = true;
  }
  for (std::size_t i = 0; i < all.count && any; ++i)
    if (all.fibers[i].state == State::at_barrier) all.fibers[i].state = State::ready;
  return any;
}

bool run_ready(const std::vector<std::size_t>& order) {
  Machine& all = machine();
  bool any = false;
  for (const std::size_t number : order) {
    if (all.fibers[number].state != State::ready) continue;
    any = true;
    all.running = number;
    EBB_CHECK(swapcontext(&all.scheduler, &all.fibers[number].context) == 0);
  }
  return any;
}

void run_block(const std::vector<std::size_t>& order) {
  Machine& all = machine();
  for (std::size_t i = 0; i < all.count; ++i) prepare(all.fibers[i], i, all.threads);
  begin_block(all.random(), all.count);
  while (true) {
    bool goes_on = run_ready(order);
    for (std::size_t warp = 0; warp * 32 < all.count; ++warp) goes_on |= release_warp(warp);
    if (!goes_on) goes_on = release_barrier();
    if (!goes_on) break;
  }
  // Whoever still waits does so for ever.
  for (std::size_t i = 0; i < all.count; ++i) EBB_CHECK(all.fibers[i].state == State::done);
}

}  // namespace

const uint3& thread() { return machine().fibers[machine().running].index; }
const uint3& block() { return machine().block; }
const dim3& blocks() { return machine().blocks; }
const dim3& threads() { return machine().threads; }
unsigned lane() { return static_cast<unsigned>(machine().running % 32); }
std::size_t running() { return machine().running; }

void sync() { wait_as(State::at_barrier); }

const Lanes& meet(std::uint64_t number) {
  Machine& all = machine();
  all.fibers[all.running].given = number;
  wait_as(State::in_warp);
  return all.taken[all.running / 32];
}

void run(dim3 blocks, dim3 threads, std::size_t bytes, const std::function<void()>& body) {
  Machine& all = machine();
  const std::lock_guard lock(all.mutex);
  all.blocks = blocks;
  all.threads = threads;
  all.count = std::size_t{threads.x} * threads.y * threads.z;
  EBB_CHECK(all.count <= 1024 && bytes <= kSharedBytes && blocks.y <= 65535 && blocks.z <= 65535);
  if (all.fibers.size() < all.count) all.fibers.resize(all.count);
  all.taken.resize((all.count + 31) / 32);
  all.body = &body;
  std::vector<std::size_t> order(all.count);
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  for (unsigned z = 0; z < blocks.z; ++z)
    for (unsigned y = 0; y < blocks.y; ++y)
      for (unsigned x = 0; x < blocks.x; ++x) {
        all.block = {x, y, z};
        std::shuffle(order.begin(), order.end(), all.random);
        run_block(order);
      }
}

}  // namespace ebb::emulated
