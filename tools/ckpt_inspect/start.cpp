#include "tools/cli/mains.h"

int main(int argc, char** argv) { return ebb::tools::inspect_main(argc, argv); }
