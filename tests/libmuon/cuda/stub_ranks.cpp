// NCCL of one process: ranks of a group meet in their streams, where each waits for the others, as
// kernels of a GPU do. A rank that never comes makes the others wait until the group is aborted.
#include <nccl.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "ebb/formats/core/check.h"
#include "tests/libmuon/cuda/stub.h"
#include "tests/libmuon/cuda/stub_control.h"

namespace {

struct Message {
  int peer;
  std::byte* data;
  std::size_t bytes;
};
struct Round {
  std::vector<Message> sends, receives;
};
struct Sent {
  const std::byte* data;
  std::size_t bytes;
  bool taken = false;
};
struct Reduced {
  std::int64_t* numbers = nullptr;
  std::size_t count = 0;
  ncclRedOp_t operation = ncclSum;
};

// Shared by the ranks of a group.
struct Group {
  explicit Group(std::size_t ranks) : reductions(ranks) {}
  std::mutex mutex;
  std::condition_variable changed;
  bool aborted = false;
  std::vector<Reduced> reductions;
  std::size_t here = 0;
  std::uint64_t meeting = 0;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Sent>>> under_way;  // from, to

  // All come, the last one reduces for all, all go.
  void reduce(int rank, Reduced mine) {
    std::unique_lock lock(mutex);
    reductions[static_cast<std::size_t>(rank)] = mine;
    const std::uint64_t now = meeting;
    if (++here < reductions.size())
      return changed.wait(lock, [&] { return meeting != now || aborted; });
    for (std::size_t i = 0; i < mine.count; ++i) {
      std::int64_t value = reductions.front().numbers[i];
      for (std::size_t other = 1; other < reductions.size(); ++other) {
        EBB_CHECK(reductions[other].count == mine.count);
        const std::int64_t number = reductions[other].numbers[i];
        value = mine.operation == ncclMin ? std::min(value, number) : value + number;
      }
      for (const Reduced& each : reductions) each.numbers[i] = value;
    }
    here = 0;
    ++meeting;
    changed.notify_all();
  }

  // The k-th that one sends another is the k-th that this one receives; sizes are equal, or a GPU
  // would do what nobody knows. Nobody goes before all it sends was taken.
  void exchange(int rank, const Round& round) {
    std::unique_lock lock(mutex);
    std::vector<std::shared_ptr<Sent>> sent;
    for (const Message& send : round.sends) {
      sent.push_back(std::make_shared<Sent>(Sent{send.data, send.bytes}));
      under_way[{rank, send.peer}].push_back(sent.back());
    }
    changed.notify_all();
    for (const Message& receive : round.receives) {
      auto& from = under_way[{receive.peer, rank}];
      changed.wait(lock, [&] { return !from.empty() || aborted; });
      if (aborted) return;
      EBB_CHECK(from.front()->bytes == receive.bytes);
      std::memcpy(receive.data, from.front()->data, receive.bytes);
      from.front()->taken = true;
      from.pop_front();
      changed.notify_all();
    }
    changed.wait(lock, [&] {
      return aborted || std::ranges::all_of(sent, [](const auto& each) { return each->taken; });
    });
  }
};

thread_local Round grouped;
thread_local bool in_group = false;
thread_local ncclComm_t grouped_in = nullptr;
thread_local cudaStream_t grouped_on = nullptr;

}  // namespace

struct ncclComm {
  // Of a call that was taken; one that does not block is asked twice for how it went.
  ncclResult_t taken() {
    in_progress = blocking ? 0 : 2;
    return blocking ? ncclSuccess : ncclInProgress;
  }
  std::shared_ptr<Group> group;
  int rank;
  bool blocking;
  int in_progress = 0;
};

extern "C" {

void ebb_stub_groups(std::uint32_t world, std::uint32_t blocking, void** groups) {
  const auto group = std::make_shared<Group>(world);
  for (std::uint32_t rank = 0; rank < world; ++rank)
    groups[rank] = new ncclComm{group, static_cast<int>(rank), blocking != 0};
}
void ebb_stub_abort(void* given) {
  Group& group = *static_cast<ncclComm*>(given)->group;
  const std::lock_guard lock(group.mutex);
  group.aborted = true;
  group.changed.notify_all();
}
void ebb_stub_end_group(void* given) { delete static_cast<ncclComm*>(given); }

const char* ncclGetErrorString(ncclResult_t) { return "failed as asked"; }
const char* ncclGetLastError(ncclComm_t) { return ""; }
ncclResult_t ncclCommUserRank(ncclComm_t group, int* rank) {
  *rank = group->rank;
  return ncclSuccess;
}
ncclResult_t ncclCommCount(ncclComm_t group, int* count) {
  *count = static_cast<int>(group->group->reductions.size());
  return ncclSuccess;
}
ncclResult_t ncclCommCuDevice(ncclComm_t, int* device) {
  *device = ebb::stub::fails("ncclCommCuDevice") ? 1 : 0;
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t group, ncclResult_t* state) {
  const bool in_progress = group->in_progress > 0 && --group->in_progress > 0;
  *state = ebb::stub::fails("NCCL") ? ncclRemoteError : in_progress ? ncclInProgress : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t operation, ncclComm_t group, cudaStream_t stream) {
  EBB_CHECK(from == to && type == ncclInt64);
  if (ebb::stub::fails("ncclAllReduce")) return ncclSystemError;
  ebb::stub::enqueue(stream, [=] {
    auto* const numbers = reinterpret_cast<std::int64_t*>(ebb::stub::open(to, count * 8));
    group->group->reduce(group->rank, {numbers, count, operation});
  });
  return group->taken();
}
ncclResult_t ncclGroupStart() {
  in_group = true;
  grouped = {};
  grouped_in = nullptr;
  return ncclSuccess;
}
ncclResult_t ncclSend(const void* data, std::size_t bytes, ncclDataType_t, int peer,
                      ncclComm_t group, cudaStream_t stream) {
  EBB_CHECK(in_group);
  grouped_in = group;
  grouped_on = stream;
  grouped.sends.push_back({peer, ebb::stub::open(data, bytes), bytes});
  return ebb::stub::fails("ncclSend") ? ncclSystemError : group->taken();
}
ncclResult_t ncclRecv(void* data, std::size_t bytes, ncclDataType_t, int peer, ncclComm_t group,
                      cudaStream_t stream) {
  EBB_CHECK(in_group);
  grouped_in = group;
  grouped_on = stream;
  grouped.receives.push_back({peer, ebb::stub::open(data, bytes), bytes});
  return group->taken();
}
ncclResult_t ncclGroupEnd() {
  in_group = false;
  if (grouped_in == nullptr) return ncclSuccess;
  ebb::stub::enqueue(grouped_on, [round = grouped, group = grouped_in] {
    group->group->exchange(group->rank, round);
  });
  return grouped_in->taken();
}

}  // extern "C"
