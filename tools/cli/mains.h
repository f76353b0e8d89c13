// What main() of each tool calls: alone, or of all tools in one program (tools/together).
#pragma once

namespace ebb::tools {

int inspect_main(int argc, char** argv);
int convert_main(int argc, char** argv);
int swap_bench_main(int argc, char** argv);

}  // namespace ebb::tools
