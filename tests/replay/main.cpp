// muon-replay CASE_DIR [real|emulated]: trains with the gradients of a case and prints how far the
// engine is from the formula in fp64 and from what the implementation computed, beside what is
// tolerated. Exit code 0: all of it holds; 1: not all; 2: the case cannot be replayed. The second
// says how bf16 is multiplied; without it, as is faster here.
#include <cstdio>
#include <optional>
#include <string_view>

#include "tests/replay/report.h"

namespace {

using ebb::formats::Result;

using ebb::libmuon::Bf16;

Result<bool> run(const char* folder, std::optional<Bf16> bf16) {
  EBB_TRY_ASSIGN(const auto one, ebb::replay::Case::open(folder));
  EBB_TRY_ASSIGN(const auto report, ebb::replay::replay(one, bf16));
  std::printf("%s\n%s%s: %s\n", one.name().c_str(), report.text().c_str(), one.name().c_str(),
              report.good() ? "holds" : "FAILS");
  return report.good();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view how = argc == 3 ? argv[2] : "";
  if (argc < 2 || argc > 3 || (argc == 3 && how != "real" && how != "emulated")) {
    std::fprintf(stderr, "usage: muon-replay CASE_DIR [real|emulated]\n");
    return 2;
  }
  const auto path = how == "real" ? Bf16::real : Bf16::emulated;
  const auto done = run(argv[1], argc == 3 ? std::optional(path) : std::nullopt);
  if (done) return *done ? 0 : 1;
  const auto& error = done.error();
  std::fprintf(stderr, "muon-replay: %s%s%s\n", error.message.c_str(),
               error.hint.empty() ? "" : "; ", error.hint.c_str());
  return 2;
}
