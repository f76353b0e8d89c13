// muon-replay CASE_DIR: trains with the gradients of a case and prints how far the engine is from
// the formula in fp64 and from what the implementation computed, beside what is tolerated. Exit
// code 0: all of it holds; 1: not all; 2: the case cannot be replayed.
#include <cstdio>

#include "tests/replay/report.h"

namespace {

using ebb::formats::Result;

Result<bool> run(const char* folder) {
  EBB_TRY_ASSIGN(const auto one, ebb::replay::Case::open(folder));
  EBB_TRY_ASSIGN(const auto report, ebb::replay::replay(one));
  std::printf("%s\n%s%s: %s\n", one.name().c_str(), report.text().c_str(), one.name().c_str(),
              report.good() ? "holds" : "FAILS");
  return report.good();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: muon-replay CASE_DIR\n");
    return 2;
  }
  const auto done = run(argv[1]);
  if (done) return *done ? 0 : 1;
  const auto& error = done.error();
  std::fprintf(stderr, "muon-replay: %s%s%s\n", error.message.c_str(),
               error.hint.empty() ? "" : "; ", error.hint.c_str());
  return 2;
}
