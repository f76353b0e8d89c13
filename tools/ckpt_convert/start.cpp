#include "tools/cli/mains.h"

int main(int argc, char** argv) { return ebb::tools::convert_main(argc, argv); }
