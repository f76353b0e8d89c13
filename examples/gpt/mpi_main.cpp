// gpt-train-mpi: gpt-train whose ranks are the processes that mpirun started, on one machine or
// several. Nothing of training is here: joining the processes, and ending together.
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "ebb/libmuon/comm/mpi_ranks.h"
#include "ebb/libswap/store/alike.h"
#include "examples/gpt/job.h"
#include "tools/cli/run.h"

namespace ebb {
namespace {

using Words = std::vector<std::string>;

constexpr std::chrono::minutes kStart(1);  // from the first process to the last

// Collective. Ranks that were told different things would wait for each other in vain: the first
// difference is named on all of them.
Result<> check_words(const Words& words) {
  std::vector<libswap::Setting> settings = {
      {"the number of arguments", std::to_string(words.size())}};
  std::string flag = "the first argument";
  for (const std::string& word : words) {
    if (word.starts_with("--")) flag = word;
    settings.push_back({flag, word});
  }
  EBB_TRY_ASSIGN(const auto rank, libmuon::make_mpi_ranks(MPI_COMM_WORLD, kStart));
  return libswap::same_everywhere(*rank, settings);
}

Result<std::unique_ptr<gpt::Team>> make_team(const gpt::Settings& settings) {
  EBB_TRY_ASSIGN(auto rank, libmuon::make_mpi_ranks(MPI_COMM_WORLD, settings.peer_limit));
  return std::unique_ptr<gpt::Team>(std::make_unique<gpt::ProcessTeam>(std::move(rank)));
}

Result<tools::Exit> work(tools::Console& console, const tools::Arguments& arguments) {
  int world = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  return gpt::run_job(console, arguments, static_cast<std::uint32_t>(world), make_team);
}

// A moment for every process to say what it has to say and to come to its end. False: one does not.
bool all_have_ended() {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Ibarrier(MPI_COMM_WORLD, &request);
  for (int looks = 0; looks < 300; ++looks) {
    int ended = 0;
    MPI_Test(&request, &ended, MPI_STATUS_IGNORE);
    if (ended != 0) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

}  // namespace

int program_main(int argc, char** argv) {
  const auto same = check_words(Words(argv + std::min(argc, 1), argv + argc));
  const auto named = [&](tools::Console& console,
                         const tools::Arguments& arguments) -> Result<tools::Exit> {
    int me = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    auto exit = same ? work(console, arguments) : Result<tools::Exit>(same.error());
    if (!exit) return std::move(exit).error().within(compose("rank {}", me));
    return exit;
  };
  return tools::run_program(gpt::train_program(), argc, argv, named);
}

}  // namespace ebb

int main(int argc, char** argv) {
  int granted = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &granted);
  const int exit = ebb::program_main(argc, argv);
  // A rank that is silent would keep all others in MPI_Finalize.
  if (exit != 0 && !ebb::all_have_ended()) MPI_Abort(MPI_COMM_WORLD, exit);
  MPI_Finalize();
  return exit;
}
