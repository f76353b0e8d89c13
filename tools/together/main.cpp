// All tools in one program, which is the one that it is called as: for a wheel, where three
// programs would be three times the size of what they share.
#include <cstdio>
#include <string_view>

#include "tools/cli/mains.h"

namespace {

struct Tool {
  std::string_view name;
  int (*main)(int, char**);
};
constexpr Tool kTools[] = {{"ckpt-inspect", ebb::tools::inspect_main},
                           {"ckpt-convert", ebb::tools::convert_main},
                           {"swap-bench", ebb::tools::swap_bench_main}};

}  // namespace

int main(int argc, char** argv) {
  const std::string_view called = argc > 0 ? argv[0] : "";
  for (const Tool& tool : kTools)
    if (called.substr(called.rfind('/') + 1) == tool.name) return tool.main(argc, argv);
  std::fputs("ebb-tools: started as ckpt-inspect, ckpt-convert or swap-bench\n", stderr);
  return 2;
}
