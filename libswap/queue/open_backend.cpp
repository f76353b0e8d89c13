#include "ebb/libswap/queue/io_queue.h"
#include "ebb/libswap/sys/posix_backend.h"

namespace ebb::libswap {
namespace {

constexpr std::uint32_t kThreads =
    8;  // as many calls at a time as the default bytes in flight hold

}  // namespace

Result<ChosenBackend> open_backend(BackendChoice choice) {
  std::string note;
  if (choice != BackendChoice::threads) {
    Result<std::unique_ptr<IoBackend>> uring = make_uring_backend();
    if (uring) return ChosenBackend{*std::move(uring), ""};
    if (choice == BackendChoice::uring) return std::move(uring).error();
    note = compose("{}; using {} I/O threads instead", uring.error().message, kThreads);
  }
  EBB_TRY_ASSIGN(std::unique_ptr<IoBackend> threads, make_threads_backend(kThreads));
  return ChosenBackend{std::move(threads), std::move(note)};
}

}  // namespace ebb::libswap
