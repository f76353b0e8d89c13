// gpt-train: trains the GPT, resumable at any moment. The seven things a trainer does with Ebb are
// open, install, gradient_ready, set_learning_rate, step, snapshot and wait: train.cpp.
#include "examples/gpt/job.h"
#include "tools/cli/run.h"

namespace ebb {
namespace {

Result<tools::Exit> work(tools::Console& console, const tools::Arguments& arguments) {
  return gpt::run_job(console, arguments, std::nullopt, [](const gpt::Settings& settings) {
    return Result<std::unique_ptr<gpt::Team>>(
        std::make_unique<gpt::ThreadTeam>(settings.ranks, settings.peer_limit));
  });
}

}  // namespace

int program_main(int argc, char** argv) {
  return tools::run_program(gpt::train_program(), argc, argv, work);
}

}  // namespace ebb

int main(int argc, char** argv) { return ebb::program_main(argc, argv); }
