#include "ebb/libswap/testing/late_device.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "ebb/formats/core/check.h"

namespace ebb::libswap {
namespace {

// A device's addresses are those of its memory, moved: whoever uses one on the host is stopped by
// the processor.
constexpr std::uint64_t kMoved = std::uint64_t{1} << 60;

std::uint64_t address_of(const std::byte* data) { return reinterpret_cast<std::uintptr_t>(data); }
std::byte* at_address(std::uint64_t address) { return reinterpret_cast<std::byte*>(address); }

}  // namespace

// One thread that does one piece of work after the other.
class LateDevice::Queue {
 public:
  Queue(std::uint64_t seed, std::uint32_t delay_us)
      : random_(seed), delay_(0, delay_us), thread_([this] { loop(); }) {}
  ~Queue() {
    {
      const MutexLock lock(mutex_);
      ending_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

  Event add(std::vector<Event> after, std::function<void()> work) {
    const MutexLock lock(mutex_);
    Work& added = work_.emplace_back(Work{std::move(after), std::move(work), {}});
    changed_.notify_all();
    return added.done.event();
  }

 private:
  struct Work {
    std::vector<Event> after;
    std::function<void()> work;
    EventSource done;
  };

  void loop() {
    while (true) {
      Work next;
      {
        const MutexLock lock(mutex_);
        while (work_.empty() && !ending_) changed_.wait(mutex_);
        if (work_.empty()) return;
        next = std::move(work_.front());
        work_.pop_front();
      }
      for (const Event& event : next.after) event.wait();
      be_late();
      next.work();
      be_late();
      next.done.pass();
    }
  }

  // One time in four: what stands behind it in the queue is late, too.
  void be_late() {
    const std::chrono::microseconds delay(delay_(random_));
    if (random_() % 4 == 0) std::this_thread::sleep_for(delay);
  }

  std::minstd_rand random_;
  std::uniform_int_distribution<std::uint32_t> delay_;
  Mutex mutex_;
  Condition changed_;
  std::deque<Work> work_ EBB_GUARDED_BY(mutex_);
  bool ending_ EBB_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

LateDevice::LateDevice(std::uint64_t seed, std::uint32_t delay_us)
    : up_(std::make_unique<Queue>(seed, delay_us)),
      down_(std::make_unique<Queue>(seed + 1, delay_us)),
      compute_(std::make_unique<Queue>(seed + 2, delay_us)) {}

LateDevice::~LateDevice() {
  const MutexLock lock(mutex_);
  EBB_CHECK(allocated_.empty());
}

Result<DeviceMemory> LateDevice::allocate(std::uint64_t bytes) {
  auto memory = std::make_unique<std::byte[]>(bytes);
  const std::uint64_t key = address_of(memory.get());
  const MutexLock lock(mutex_);
  allocated_[key] = bytes;
  count_.now += bytes;
  count_.most = std::max(count_.most, count_.now);
  const std::shared_ptr<std::byte> moved(
      at_address(key + kMoved),
      [this, key, bytes, owned = std::shared_ptr<std::byte[]>(std::move(memory))](std::byte*) {
        forget(key, bytes);
      });
  return DeviceMemory(moved, bytes, this);
}

void LateDevice::forget(std::uint64_t key, std::uint64_t bytes) {
  const MutexLock lock(mutex_);
  allocated_.erase(key);
  count_.now -= bytes;
}

std::span<std::byte> LateDevice::open(const Buffer& buffer) const {
  EBB_CHECK(buffer.device == this);
  const std::uint64_t first = address_of(buffer.data) - kMoved;
  const MutexLock lock(mutex_);
  auto found = allocated_.upper_bound(first);
  EBB_CHECK(found != allocated_.begin());
  --found;
  EBB_CHECK(first + buffer.size() <= found->first + found->second);
  return {at_address(first), buffer.size()};
}

Event LateDevice::copy(const Buffer& from, const Buffer& to, const Event& after) {
  EBB_CHECK(from.device == this || to.device == this);
  const bool up = to.device == this;
  {
    const MutexLock lock(mutex_);
    const bool inside = from.device != nullptr && to.device != nullptr;
    (inside ? count_.inside : up ? count_.up : count_.down) += from.size();
  }
  // Devices of a test are all of this kind.
  const auto bytes = [](const Buffer& buffer) {
    return buffer.device == nullptr ? buffer.bytes()
                                    : static_cast<const LateDevice*>(buffer.device)->open(buffer);
  };
  return (up ? up_ : down_)->add({after}, [from, to, bytes] {
    std::ranges::copy(bytes(from), bytes(to).begin());
  });
}

Event LateDevice::compute(std::span<const Event> after, std::function<void()> work) {
  return compute_->add({after.begin(), after.end()}, std::move(work));
}

std::uint64_t LateDevice::copied_up() const {
  const MutexLock lock(mutex_);
  return count_.up;
}
std::uint64_t LateDevice::copied_down() const {
  const MutexLock lock(mutex_);
  return count_.down;
}
std::uint64_t LateDevice::copied_inside() const {
  const MutexLock lock(mutex_);
  return count_.inside;
}
std::uint64_t LateDevice::most_bytes() const {
  const MutexLock lock(mutex_);
  return count_.most;
}

}  // namespace ebb::libswap
