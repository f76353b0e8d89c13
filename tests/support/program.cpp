#include "tests/support/program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "ebb/formats/core/check.h"

namespace ebb::test_support {
namespace {

struct Pipe {
  int read_end = -1;
  int write_end = -1;
};

Pipe open_pipe() {
  std::array<int, 2> ends{};
  EBB_CHECK(pipe2(ends.data(), O_CLOEXEC) == 0);
  return {ends[0], ends[1]};
}

// Both streams at once: a program that fills one while we read the other would wait for ever.
void read_both(int out, int err, Outcome& outcome) {
  std::array<pollfd, 2> polled = {pollfd{out, POLLIN, 0}, pollfd{err, POLLIN, 0}};
  std::array<char, 65536> buffer{};
  for (int open = out < 0 ? 1 : 2; open > 0;) {
    EBB_CHECK(poll(polled.data(), polled.size(), -1) > 0);
    for (std::size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].fd < 0 || polled[i].revents == 0) continue;
      const ssize_t count = read(polled[i].fd, buffer.data(), buffer.size());
      if (count > 0) {
        (i == 0 ? outcome.out : outcome.err).append(buffer.data(), static_cast<std::size_t>(count));
        continue;
      }
      close(polled[i].fd);
      polled[i].fd = -1;
      --open;
    }
  }
}

}  // namespace

RunningProgram::RunningProgram(const std::string& program,
                               const std::vector<std::string>& arguments) {
  const std::string path = (std::filesystem::path(EBB_BIN) / program).string();
  std::vector<std::string> words = {program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  setenv("NO_COLOR", "1", 1);

  const Pipe out = open_pipe(), err = open_pipe();
  posix_spawn_file_actions_t actions;
  EBB_CHECK(posix_spawn_file_actions_init(&actions) == 0);
  EBB_CHECK(posix_spawn_file_actions_adddup2(&actions, out.write_end, STDOUT_FILENO) == 0);
  EBB_CHECK(posix_spawn_file_actions_adddup2(&actions, err.write_end, STDERR_FILENO) == 0);
  EBB_CHECK(posix_spawn_file_actions_addchdir_np(&actions, EBB_FIXTURES) == 0);
  EBB_CHECK(posix_spawn(&child_, path.c_str(), &actions, nullptr, argv.data(), environ) == 0);
  posix_spawn_file_actions_destroy(&actions);
  close(out.write_end);
  close(err.write_end);
  out_ = out.read_end;
  err_ = err.read_end;
}

void RunningProgram::signal(int number) const { EBB_CHECK(kill(child_, number) == 0); }

void RunningProgram::close_output() {
  close(out_);
  out_ = -1;
}

Outcome RunningProgram::wait() {
  Outcome outcome;
  read_both(out_, err_, outcome);
  int status = 0;
  EBB_CHECK(waitpid(child_, &status, 0) == child_);
  outcome.exit = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

Outcome run_program(const std::string& program, const std::vector<std::string>& arguments) {
  return RunningProgram(program, arguments).wait();
}

std::string text_of_file(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

ScratchDirectory::ScratchDirectory() {
  path_ = (std::filesystem::temp_directory_path() / "ebb-test-XXXXXX").string();
  EBB_CHECK(mkdtemp(path_.data()) != nullptr);
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace ebb::test_support
