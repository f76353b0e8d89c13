// Runs one of the built programs and keeps what it said.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace ebb::test_support {

struct Outcome {
  int exit = -1;  // 128 + signal when one ended it
  std::string out;
  std::string err;
};
// Whether the part stands in a text that a program said.
inline bool says(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// A program that is still running. REQUIRES: wait() is called once.
class RunningProgram {
 public:
  RunningProgram(const std::string& program, const std::vector<std::string>& arguments);
  void signal(int number) const;
  void close_output();  // as `| head` does; what it prints after that is lost
  Outcome wait();

 private:
  int child_ = 0;
  int out_ = -1;
  int err_ = -1;
};

// `program` is looked up in the folder of built programs unless it is a whole path, and runs in the
// folder of fixtures, without colours.
Outcome run_program(const std::string& program, const std::vector<std::string>& arguments);

// What a program wrote; nothing where there is no such file.
std::string text_of_file(const std::filesystem::path& path);

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

}  // namespace ebb::test_support
