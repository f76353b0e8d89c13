// RemoteReads: bytes of files that another rank reaches, while each rank does its own work with
// them: no rank knows when another one will want what.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "ebb/libmuon/comm/communicator.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::libmuon {

class RemoteReads {
 public:
  // Bytes of a file that this rank reaches; files have the same numbers on all ranks.
  using Read =
      std::function<Result<>(std::uint32_t file, std::uint64_t offset, std::span<std::byte> into)>;
  // `read_here`: for the others; from the thread that calls run().
  explicit RemoteReads(Read read_here) : read_(std::move(read_here)) {}

  // Blocks until `holder` has sent them. Any thread, inside run()'s work.
  Result<> read(Rank holder, std::uint32_t file, std::uint64_t offset, std::span<std::byte> into);

  // Collective. As together(); meanwhile this rank serves the others, and they this one.
  Result<> run(Communicator& ranks, std::string_view doing, const std::function<Result<>()>& work);

 private:
  struct Request {
    Rank holder{};
    std::uint32_t file = 0;
    std::uint64_t offset = 0;
    std::span<std::byte> into;
    std::optional<Result<>> answer = {};
  };
  // A request as all ranks know it; `number`: among those of the rank that wants it.
  struct Known {
    std::uint32_t wants = 0, holder = 0, file = 0, number = 0;
    std::uint64_t offset = 0, bytes = 0;
  };
  struct Wants {
    Rank rank{};
    bool finished = false;
    std::vector<Request*> requests;
  };
  class Round;

  Result<> serve(Communicator& ranks);
  Wants wait_for_wants(Rank me, std::chrono::milliseconds limit);
  void answer_to(Request& request, Result<> answer);
  void finish();
  void close(const Error& why);

  const Read read_;
  libswap::Mutex mutex_;
  libswap::Condition changed_;
  std::vector<Request*> waiting_ EBB_GUARDED_BY(mutex_);
  bool finished_ EBB_GUARDED_BY(mutex_) = false;
  std::optional<Error> closed_ EBB_GUARDED_BY(mutex_);  // why nobody is served any more
};

}  // namespace ebb::libmuon
