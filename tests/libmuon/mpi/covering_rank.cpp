// A rank of a run of the covering array over MPI, started by mpirun with a leg's words.
#include <mpi.h>

#include <cstdio>
#include <string>
#include <vector>

#include "ebb/libmuon/comm/mpi_ranks.h"
#include "tests/libmuon/covering/rank_run.h"

namespace {

int run(const std::vector<std::string>& words) {
  const auto ranks = ebb::libmuon::make_mpi_ranks(MPI_COMM_WORLD, std::chrono::seconds(30));
  if (!ranks) {
    std::fprintf(stderr, "%s\n", ranks.error().message.c_str());
    return 1;
  }
  return static_cast<int>(ebb::test::run_process(ebb::test::Leg::from(words), **ranks));
}

}  // namespace

int main(int argc, char** argv) {
  int granted = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &granted);
  const int answer = run({argv + 1, argv + argc});
  MPI_Finalize();
  return answer;
}
