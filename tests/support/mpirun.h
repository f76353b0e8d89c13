// How a program is started over processes of MPI. What it is compiled with says where mpirun is.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

namespace ebb::test_support {

using Words = std::vector<std::string>;

inline const std::string& mpirun() {
  static const std::string path = [] {
    // Open MPI: as root in a container, and more processes than cores.
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    ::setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
    return std::string(EBB_MPIEXEC);
  }();
  return path;
}

// The arguments of mpirun for so many processes of one of the built programs.
inline Words on_processes(std::size_t count, const std::string& program, const Words& arguments) {
  Words words = {"-n", std::to_string(count), EBB_BIN "/" + program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

}  // namespace ebb::test_support
