#include "ebb/libmuon/comm/plugin_ranks.h"

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "ebb/libmuon/comm/home_ranks.h"
#include "ebb/libmuon/comm/meeting.h"
#include "ebb/libswap/device/device_queue.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::libmuon {
namespace {

using libswap::Buffer;
using libswap::Event;
using libswap::PluginAnswer;
using libswap::PluginWhy;

// Of all communicators of one world on this rank.
struct World {
  libswap::PluginDevice& device;
  std::chrono::milliseconds limit;
  libswap::Mutex mutex;
  std::deque<void*> spare EBB_GUARDED_BY(mutex);  // for duplicates
  std::optional<Error> over EBB_GUARDED_BY(mutex);

  Error end(Error why) {
    const libswap::MutexLock lock(mutex);
    if (!over) over = std::move(why);
    return *over;
  }
  Result<> still_on() {
    const libswap::MutexLock lock(mutex);
    if (over) return *over;
    return {};
  }
};

// A group as the calls that are still to be made hold it.
struct OpenRanks {
  libswap::PluginHandle plugin;
  void* ranks = nullptr;
  ~OpenRanks() {
    if (ranks != nullptr) table().close(ranks);
  }
  const RanksTable& table() const {
    return *reinterpret_cast<const RanksTable*>(plugin->tables->communicator);
  }
};

// Whether an event passes in time.
class Passing {
 public:
  explicit Passing(const Event& event) : state_(std::make_shared<State>()) {
    event.then([state = state_] {
      const libswap::MutexLock lock(state->mutex);
      state->passed = true;
      state->changed.notify_all();
    });
  }
  bool within(std::chrono::nanoseconds limit) const {
    const libswap::MutexLock lock(state_->mutex);
    if (!state_->passed) state_->changed.wait_for(state_->mutex, limit);
    return state_->passed;
  }

 private:
  struct State {
    libswap::Mutex mutex;
    libswap::Condition changed;
    bool passed EBB_GUARDED_BY(mutex) = false;
  };
  std::shared_ptr<State> state_;
};

// What a rank brings to a call, as numbers that are added up over the ranks: calls of each verb,
// then a size and its square, then what it sends less what it expects.
using Record = std::array<std::int64_t, 6>;

// Sizes as a number that depends on their order: wraps.
std::uint64_t mixed(std::uint64_t into, std::uint64_t number) {
  std::uint64_t value = (into ^ number) * 0x9e3779b97f4a7c15u;
  return value ^ (value >> 29);
}

std::uint64_t pair_of(std::uint32_t from, std::uint32_t to) {
  return std::uint64_t{from} << 32 | to;
}

class PluginRanks : public Communicator {
 public:
  static Result<std::unique_ptr<Communicator>> open(std::shared_ptr<World> world, void* group) {
    std::unique_ptr<PluginRanks> made(new PluginRanks(std::move(world)));
    OpenRanks& opened = *made->opened_;
    opened.plugin = made->world_->device.handle();
    PluginWhy why;
    const auto answer = opened.table().open(opened.plugin->device, group, &opened.ranks,
                                            &made->rank_, &made->size_, &why);
    if (answer != PluginAnswer::done)
      return Error{Code::usage, compose("{}: {}", made->world_->device.name(), why.text)};
    EBB_TRY_ASSIGN(made->queue_, libswap::DeviceQueue::open(opened.plugin));
    return std::unique_ptr<Communicator>(std::move(made));
  }

  Rank rank() const override { return Rank{rank_}; }
  std::uint32_t world() const override { return size_; }
  std::chrono::milliseconds limit() const override { return world_->limit; }
  bool takes(const libswap::Device& device) const override { return &device == &world_->device; }

  Result<std::int64_t> agree(std::int64_t mine) override {
    EBB_TRY(meet(Verb::agree, 0, 0));
    std::array<std::int64_t, 1> number = {mine};
    EBB_TRY(reduce(number, Reduction::smallest, Verb::agree));
    return number[0];
  }

  // As two halves each, whose sums cannot wrap.
  Result<> sum(std::span<std::int64_t> numbers) override {
    EBB_TRY_ASSIGN(const Record all, meet(Verb::sum, static_cast<std::int64_t>(numbers.size()), 0));
    if (static_cast<std::uint64_t>(all[3]) * static_cast<std::uint64_t>(all[3]) !=
        static_cast<std::uint64_t>(all[4]) * size_)
      return Error{Code::layout, compose("sum: the ranks bring {} numbers together, {} here",
                                         all[3], numbers.size())};
    std::vector<std::int64_t> halves;
    for (const std::int64_t number : numbers) {
      halves.push_back(number & 0xffffffff);
      halves.push_back(number >> 32);
    }
    EBB_TRY(reduce(halves, Reduction::sum, Verb::sum));
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const std::int64_t high = halves[2 * i + 1] + (halves[2 * i] >> 32);
      if (high != static_cast<std::int32_t>(high))
        return Error{Code::limit, compose("sum: number {} does not fit 64 bits", i)};
    }
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const std::int64_t high = halves[2 * i + 1] + (halves[2 * i] >> 32);
      numbers[i] =
          static_cast<std::int64_t>(static_cast<std::uint64_t>(high) << 32 |
                                    (static_cast<std::uint64_t>(halves[2 * i]) & 0xffffffffu));
    }
    return {};
  }

  Result<Event> begin_exchange(std::span<const SendBuffer> sends,
                               std::span<const ReceiveBuffer> receives,
                               std::span<const Event> after) override {
    Contribution mine{.verb = Verb::exchange};
    for (const SendBuffer& send : sends)
      mine.sends.push_back({send.peer, send.data.size(), memory_of(*this, send.data)});
    for (const ReceiveBuffer& receive : receives)
      mine.receives.push_back({receive.peer, receive.data.size(), memory_of(*this, receive.data)});
    EBB_TRY(check_sizes(mine));
    libswap::all_of(after).wait();
    std::vector<Event> ready;
    std::vector<Staged> staged;
    const auto placed = [&](const auto& buffers) -> Result<std::vector<PlainMessage>> {
      std::vector<PlainMessage> messages;
      for (const auto& each : buffers) {
        if (each.data.empty()) continue;
        EBB_TRY_ASSIGN(const Buffer there, on_device(each.data, staged));
        messages.push_back({index_of(each.peer), there.data, there.size()});
      }
      return messages;
    };
    EBB_TRY_ASSIGN(const auto out, placed(sends));
    for (const Staged& each : staged) ready.push_back(libswap::copy(each.host, each.there(), {}));
    const std::size_t sent = staged.size();
    EBB_TRY_ASSIGN(const auto in, placed(receives));
    const Event done =
        queue_->add(ready, [opened = opened_, out, in](void* stream, PluginWhy& why) {
          return opened->table().exchange(opened->ranks, stream, out.data(), out.size(), in.data(),
                                          in.size(), &why);
        });
    EBB_TRY(come_to(done, Verb::exchange));
    std::vector<Event> down;
    for (const Staged& each : std::span(staged).subspan(sent))
      down.push_back(libswap::copy(each.there(), each.host, done));
    libswap::all_of(down).wait();
    EBB_TRY(world_->device.status());
    return Event();
  }

  Result<std::unique_ptr<Communicator>> duplicate() override {
    EBB_TRY(world_->still_on());
    void* group = nullptr;
    {
      const libswap::MutexLock lock(world_->mutex);
      if (world_->spare.empty())
        return Error{Code::usage, "there is no communicator left to be a duplicate",
                     "make_plugin_ranks() takes one more for each"};
      group = world_->spare.front();
      world_->spare.pop_front();
    }
    return open(world_, group);
  }
  void abort() override { world_->end(gave_up(Rank{rank_})); }

 private:
  // A buffer of the host's, and where it is on the device.
  struct Staged {
    Buffer host;
    libswap::DeviceMemory memory;
    Buffer there() const { return memory.buffer().sub(0, host.size()).as(host.dtype); }
  };

  explicit PluginRanks(std::shared_ptr<World> world)
      : world_(std::move(world)), opened_(std::make_shared<OpenRanks>()) {}

  Result<Buffer> on_device(const Buffer& buffer, std::vector<Staged>& staged) {
    if (buffer.device != nullptr) return buffer;
    EBB_TRY_ASSIGN(auto memory, world_->device.allocate(buffer.size()));
    staged.push_back({buffer, std::move(memory)});
    return staged.back().there();
  }

  // Until it has passed; not longer than the limit, and not where the group is in trouble.
  Result<> come_to(const Event& event, Verb verb) {
    const Passing passing(event);
    const auto begin = std::chrono::steady_clock::now();
    while (!passing.within(std::chrono::milliseconds(100))) {
      PluginWhy why;
      if (opened_->table().trouble(opened_->ranks, &why) != PluginAnswer::done)
        return world_->end({Code::peer, compose("{}: {}", name_of(verb), why.text)});
      EBB_TRY(world_->still_on());
      if (world_->limit.count() != 0 && std::chrono::steady_clock::now() - begin > world_->limit)
        return world_->end(
            {Code::peer,
             compose("a rank kept the others waiting in {} for {} ms, which is the limit",
                     name_of(verb), world_->limit.count()),
             "end the communicators with ncclCommAbort before you destroy what uses them"});
    }
    return world_->device.status();
  }

  Result<> reduce(std::span<std::int64_t> numbers, Reduction reduction, Verb verb) {
    if (numbers.empty()) return {};
    EBB_TRY(world_->still_on());
    EBB_TRY(make_room(numbers.size_bytes()));
    const Buffer here = libswap::buffer_of(std::as_writable_bytes(numbers));
    const Buffer there = numbers_.buffer().sub(0, numbers.size_bytes());
    const Event up = libswap::copy(here, there, {});
    const Event done = queue_->add({up}, [opened = opened_, there, reduction,
                                          count = numbers.size()](void* stream, PluginWhy& why) {
      return opened->table().reduce(opened->ranks, stream,
                                    reinterpret_cast<std::int64_t*>(there.data), count, reduction,
                                    &why);
    });
    up.wait();
    EBB_TRY(come_to(done, verb));
    libswap::copy(there, here, done).wait();
    return world_->device.status();
  }

  Result<> make_room(std::uint64_t bytes) {
    if (numbers_.buffer().size() >= bytes) return {};
    EBB_TRY_ASSIGN(numbers_, world_->device.allocate(std::max<std::uint64_t>(bytes, 4096)));
    return {};
  }

  // What all ranks bring together, if they make the same call.
  Result<Record> meet(Verb verb, std::int64_t size, std::uint64_t balance) {
    Record all{};
    all[static_cast<std::size_t>(verb)] = 1;
    all[3] = size;
    all[4] = static_cast<std::int64_t>(static_cast<std::uint64_t>(size) *
                                       static_cast<std::uint64_t>(size));
    all[5] = static_cast<std::int64_t>(balance);
    EBB_TRY(reduce(all, Reduction::sum, verb));
    if (all[static_cast<std::size_t>(verb)] == size_) return all;
    return Error{Code::layout,
                 compose("{} ranks call agree, {} sum, {} exchange", all[0], all[1], all[2])};
  }

  // Each adds what it sends and takes away what it expects, by pair and order: zero if all match.
  Result<> check_sizes(const Contribution& mine) {
    const Result<> round = check_messages(mine, Rank{rank_}, size_);
    std::vector<std::uint64_t> sent(size_), expected(size_);
    if (round) {
      for (const Message& message : mine.sends) count(message, sent);
      for (const Message& message : mine.receives) count(message, expected);
    }
    std::uint64_t balance = 0;
    for (std::uint32_t peer = 0; peer < size_; ++peer) {
      balance += mixed(pair_of(rank_, peer), sent[peer]);
      balance -= mixed(pair_of(peer, rank_), expected[peer]);
    }
    EBB_TRY_ASSIGN(const Record all, meet(Verb::exchange, round ? 0 : 1, balance));
    EBB_TRY(round);
    if (all[3] != 0)
      return Error{Code::layout, "exchange: another rank's round cannot be",
                   "its own message says why"};
    if (all[5] == 0) return {};
    return Error{Code::layout, "exchange: what ranks send and what they expect has other sizes"};
  }
  static void count(const Message& message, std::vector<std::uint64_t>& channels) {
    std::uint64_t& channel = channels[index_of(message.peer)];
    channel = mixed(channel, message.bytes + 1);
  }

  const std::shared_ptr<World> world_;
  const std::shared_ptr<OpenRanks> opened_;
  std::uint32_t rank_ = 0, size_ = 1;
  libswap::DeviceMemory numbers_;
  std::unique_ptr<libswap::DeviceQueue> queue_;
};

}  // namespace

Result<std::unique_ptr<Communicator>> make_plugin_ranks(libswap::PluginDevice& device,
                                                        std::vector<void*> groups,
                                                        std::chrono::milliseconds limit) {
  EBB_TRY(libswap::check_table(device.handle()->name, "the communicator",
                               device.handle()->tables->communicator,
                               {sizeof(RanksTable), kRanksTableVersion}));
  if (groups.empty()) return Error{Code::usage, "no communicator was handed in"};
  const auto world = std::make_shared<World>(device, limit);
  {
    const libswap::MutexLock lock(world->mutex);
    world->spare.assign(groups.begin() + 1, groups.end());
  }
  EBB_TRY_ASSIGN(auto ranks, PluginRanks::open(world, groups.front()));
  return at_home(std::move(ranks));
}

}  // namespace ebb::libmuon
