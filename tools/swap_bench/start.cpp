#include "tools/cli/mains.h"

int main(int argc, char** argv) { return ebb::tools::swap_bench_main(argc, argv); }
