// Runs one of the built programs and keeps what it said.
#pragma once

#include <string>
#include <vector>

namespace test_support {

struct Outcome {
  int exit = -1;  // 128 + signal when one ended it
  std::string out;
  std::string err;
};

// `program` is looked up in the folder of built programs, and runs in the folder of fixtures,
// without colours.
Outcome run_program(const std::string& program, const std::vector<std::string>& arguments);

// A new empty directory below the system's temporary one, removed with everything in it.
class ScratchDirectory {
 public:
  ScratchDirectory();
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace test_support
