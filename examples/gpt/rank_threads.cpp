#include "examples/gpt/rank_threads.h"

#include <optional>
#include <thread>
#include <vector>

#include "ebb/libswap/sys/thread.h"

namespace ebb::gpt {

Result<> on_rank_threads(std::uint32_t world,
                         const std::function<Result<>(libmuon::Communicator&)>& body) {
  auto ranks = libmuon::make_thread_ranks(world);
  std::vector<Result<>> answers(world);
  std::vector<std::thread> threads;
  std::optional<Error> not_started;
  for (std::size_t rank = 0; rank < world; ++rank) {
    auto thread = libswap::start_thread([&, rank] {
      answers[rank] = body(*ranks[rank]);
      if (!answers[rank]) ranks[rank]->abort();  // nobody waits for this rank
    });
    if (!thread) {
      not_started = std::move(thread).error();
      ranks[rank]->abort();
      break;
    }
    threads.push_back(std::move(*thread));
  }
  for (std::thread& thread : threads) thread.join();
  if (not_started) return *not_started;
  const Error* first = nullptr;
  for (const Result<>& answer : answers)
    if (!answer && (first == nullptr || first->code == Code::peer)) first = &answer.error();
  if (first != nullptr) return *first;
  return {};
}

}  // namespace ebb::gpt
