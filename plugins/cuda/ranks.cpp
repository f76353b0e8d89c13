// The communicator's table over a trainer's ncclComm_t. Nothing is created, ended or aborted here.
#include <nccl.h>

#include <memory>
#include <thread>

#include "plugins/cuda/device.h"

namespace ebb::cuda {
namespace {

struct CudaRanks {
  CudaDevice& device;
  ncclComm_t group;
};

CudaRanks& ranks_of(void* ranks) { return *static_cast<CudaRanks*>(ranks); }

// Given to NCCL, if perhaps not yet taken by it.
bool given_to(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

Answer answer_of(const CudaRanks& ranks, ncclResult_t result, const char* doing, Why* why) {
  // A communicator that does not block answers later; what comes of it, trouble() and the stream
  // tell.
  if (given_to(result)) return Answer::done;
  const char* const last = ncclGetLastError(ranks.group);
  return because(why, Answer::failed,
                 std::string(doing) + ": " + ncclGetErrorString(result) +
                     (last != nullptr && *last != '\0' ? std::string(", ") + last : ""));
}

// Until a call on a communicator that does not block has been taken: only then may the next be
// made.
Answer taken(const CudaRanks& ranks, ncclResult_t result, const char* doing, Why* why) {
  while (result == ncclInProgress) {
    std::this_thread::yield();
    ncclResult_t state = ncclSuccess;
    result = ncclCommGetAsyncError(ranks.group, &state);
    if (result == ncclSuccess) result = state;
  }
  return answer_of(ranks, result, doing, why);
}

Answer open(void* device, void* group, void** opened, std::uint32_t* rank, std::uint32_t* world,
            Why* why) {
  auto ranks = std::make_unique<CudaRanks>(device_of(device), static_cast<ncclComm_t>(group));
  const Current current(ranks->device);
  int me = 0, all = 0, on = 0;
  for (const auto& [result, doing] :
       {std::pair{ncclCommUserRank(ranks->group, &me), "ncclCommUserRank"},
        std::pair{ncclCommCount(ranks->group, &all), "ncclCommCount"},
        std::pair{ncclCommCuDevice(ranks->group, &on), "ncclCommCuDevice"}})
    if (const Answer answer = answer_of(*ranks, result, doing, why); answer != Answer::done)
      return answer;
  if (on != ranks->device.index)
    return because(why, Answer::failed,
                   "the communicator is of device " + std::to_string(on) + ", not of " +
                       std::to_string(ranks->device.index));
  *rank = static_cast<std::uint32_t>(me);
  *world = static_cast<std::uint32_t>(all);
  *opened = ranks.release();
  return Answer::done;
}

void close(void* closed) { delete &ranks_of(closed); }

Answer reduce(void* given, void* stream, std::int64_t* numbers, std::uint64_t count,
              libmuon::Reduction reduction, Why* why) {
  const CudaRanks& ranks = ranks_of(given);
  const Current current(ranks.device);
  const ncclRedOp_t operation = reduction == libmuon::Reduction::smallest ? ncclMin : ncclSum;
  return taken(
      ranks,
      ncclAllReduce(numbers, numbers, count, ncclInt64, operation, ranks.group, stream_of(stream)),
      "ncclAllReduce", why);
}

// One group, so that no send waits for a receive that comes behind it.
Answer exchange(void* given, void* stream, const libmuon::PlainMessage* sends,
                std::uint64_t send_count, const libmuon::PlainMessage* receives,
                std::uint64_t receive_count, Why* why) {
  const CudaRanks& ranks = ranks_of(given);
  const Current current(ranks.device);
  ncclResult_t result = ncclGroupStart();
  for (std::uint64_t i = 0; i < send_count && given_to(result); ++i)
    result = ncclSend(sends[i].data, sends[i].bytes, ncclUint8, static_cast<int>(sends[i].peer),
                      ranks.group, stream_of(stream));
  for (std::uint64_t i = 0; i < receive_count && given_to(result); ++i)
    result = ncclRecv(receives[i].data, receives[i].bytes, ncclUint8,
                      static_cast<int>(receives[i].peer), ranks.group, stream_of(stream));
  const ncclResult_t ended = ncclGroupEnd();
  return taken(ranks, given_to(result) ? ended : result, "ncclSend and ncclRecv", why);
}

Answer trouble(void* given, Why* why) {
  const CudaRanks& ranks = ranks_of(given);
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(ranks.group, &state);
  return answer_of(ranks, asked == ncclSuccess ? state : asked, "NCCL", why);
}

}  // namespace

const libmuon::RanksTable kRanksTable = {
    .head = {sizeof(libmuon::RanksTable), libmuon::kRanksTableVersion},
    .open = open,
    .close = close,
    .reduce = reduce,
    .exchange = exchange,
    .trouble = trouble};

}  // namespace ebb::cuda
