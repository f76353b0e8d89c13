// gpt-train: trains the GPT, resumable at any moment. The seven things a trainer does with Ebb are
// open, install, gradient_ready, set_learning_rate, step, snapshot and wait: train.cpp.
#include "examples/gpt/job.h"
#include "examples/gpt/muon.h"
#include "tools/cli/run.h"

namespace ebb {
namespace {

Result<tools::Exit> work(tools::Console& console, const tools::Arguments& arguments) {
  if (arguments.has("list-presets")) {
    console.print(gpt::preset_list());
    return tools::Exit::success;
  }
  EBB_TRY_ASSIGN(const gpt::Settings settings, gpt::settings_from(arguments));
  gpt::ThreadTeam team(settings.ranks, settings.peer_limit);
  return gpt::run_job(console, settings, team);
}

}  // namespace

int program_main(int argc, char** argv) {
  return tools::run_program(gpt::train_program(), argc, argv, work);
}

}  // namespace ebb

int main(int argc, char** argv) { return ebb::program_main(argc, argv); }
