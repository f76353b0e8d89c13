#include "examples/gpt/team.h"

#include <array>
#include <optional>
#include <thread>
#include <vector>

#include "ebb/libswap/sys/thread.h"

namespace ebb::gpt {

Result<> ThreadTeam::run(const RankBody& body) {
  auto ranks = libmuon::make_thread_ranks(world_, limit_);
  std::vector<Result<>> answers(world_);
  std::vector<std::thread> threads;
  std::optional<Error> not_started;
  for (std::size_t rank = 0; rank < world_; ++rank) {
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

Result<> ProcessTeam::run(const RankBody& body) {
  auto answer = body(*rank_);
  if (!answer) rank_->abort();
  return answer;
}

Result<std::uint64_t> ProcessTeam::sum(std::uint64_t mine) {
  std::array<std::int64_t, 1> total{static_cast<std::int64_t>(mine)};
  EBB_TRY(rank_->sum(total));
  return static_cast<std::uint64_t>(total[0]);
}

}  // namespace ebb::gpt
