// A rank of a test's job, started by mpirun: trains the model with every nuisance, or misbehaves.
//   train FILE STEPS DIRECTORY...   rank 0 writes its weights; one directory for all, or one each
//   stall DIRECTORY                 rank 1 stops stepping; all say what they are answered, and
//                                   whether it was sooner than in twice the limit
//   threads single|none             MPI was initialised with too little, or not at all
#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "ebb/libmuon/comm/mpi_ranks.h"
#include "ebb/libswap/queue/io_queue.h"
#include "tests/libmuon/support/training.h"
#include "tests/libmuon/support/world.h"
#include "tests/support/alarm.h"

namespace ebb::test {
namespace {

using libmuon::Communicator;
using std::chrono::milliseconds;
using Words = std::vector<std::string>;

constexpr milliseconds kSilence(1000);  // the limit where a rank falls silent

Training setup_of(std::uint32_t ranks) {
  return {.ranks = ranks, .gradients = Policy::zero3, .budget_bytes = 4 * 4096};
}

Result<> train(Communicator& rank, const Words& words) {
  const std::size_t me = index_of(rank.rank());
  const std::string directory = words[words.size() == 3 ? 2 : 2 + me];
  const auto outcome =
      train_in_process(setup_of(rank.world()), rank, directory, std::stoull(words[1]));
  if (!outcome.error.empty()) return Error{Code::state, outcome.error};
  if (me != 0) return {};
  std::printf("%s\n", outcome.origin.c_str());
  const auto bytes = std::as_bytes(std::span(outcome.weights));
  std::ofstream(words[0], std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  return {};
}

void tell(Communicator& rank, const Error& error, const test_support::Alarm& alarm) {
  std::printf("rank %u: %s, %s: %s\n", index_of(rank.rank()),
              std::string(formats::name_of(error.code)).c_str(), alarm.rang() ? "late" : "in time",
              error.message.c_str());
}

Result<> stall(Communicator& rank, const Words& words) {
  EBB_TRY_ASSIGN(auto chosen, libswap::open_backend(libswap::BackendChoice::automatic));
  EBB_TRY_ASSIGN(const auto io, libswap::IoQueue::start(std::move(chosen.backend), {}));
  EBB_TRY_ASSIGN(const auto swap, libswap::SwapDirectory::open(*io, words[0], rank));
  EBB_TRY_ASSIGN(
      auto engine,
      RankEngine::open(*io, *swap, rank, config_of(setup_of(rank.world()), nuisance_model())));
  EBB_TRY(engine.hand_in(1));
  EBB_TRY(engine.step());
  EBB_TRY(engine.hand_in(2));
  if (rank.rank() == Rank{1}) std::this_thread::sleep_for(3 * kSilence);
  const test_support::Alarm alarm(2 * kSilence);
  const auto stepped = engine.step();
  if (stepped) return Error{Code::state, "the step was made"};
  tell(rank, stepped.error(), alarm);
  const auto agreed = rank.agree(0);
  if (agreed) return Error{Code::state, "the ranks agreed"};
  tell(rank, agreed.error(), alarm);
  return {};
}

Result<> with_too_little() {
  EBB_TRY(libmuon::make_mpi_ranks(MPI_COMM_WORLD, milliseconds(10000)));
  return {};
}

Result<> run(const Words& words) {
  if (words[0] == "threads") return with_too_little();
  const bool stalls = words[0] == "stall";
  EBB_TRY_ASSIGN(const auto rank,
                 libmuon::make_mpi_ranks(MPI_COMM_WORLD, stalls ? kSilence : milliseconds(20000)));
  const Words rest(words.begin() + 1, words.end());
  return stalls ? stall(*rank, rest) : train(*rank, rest);
}

}  // namespace
}  // namespace ebb::test

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const bool single = words.back() == "single", none = words.back() == "none";
  int granted = 0;
  if (!none)
    MPI_Init_thread(&argc, &argv, single ? MPI_THREAD_SINGLE : MPI_THREAD_MULTIPLE, &granted);
  const auto done = ebb::test::run(words);
  if (!done)
    std::fprintf(stderr, "%s: %s\n", std::string(name_of(done.error().code)).c_str(),
                 done.error().message.c_str());
  if (!none) MPI_Finalize();
  return done ? 0 : 1;
}
