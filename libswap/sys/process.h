// This process as the kernel sees it, and child processes: for programs that drive other programs.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ebb/formats/core/result.h"
#include "ebb/libswap/sys/io_backend.h"
#include "ebb/libswap/sys/unique.h"

namespace ebb::libswap {

std::uint64_t process_id();
// The most memory this process ever had resident. After exec it starts from the starter's size.
std::uint64_t peak_resident_bytes();
// For a program that reads, says what it found and ends: what is freed is kept for what comes next,
// and memory comes from the kernel in large steps, some of it in huge pages. Call it first.
void keep_freed_memory();
// For a program whose threads move large buffers: malloc and stacks take few addresses, and very
// few where those are limited (ulimit -v), used or not. Call it first.
void spare_addresses();
// The folder of the running program: where its sister programs are.
Result<fs::path> program_directory();
// A sister program of this code: beside the running program; else, where this code is of a library,
// beside that, in the folder bin beside its own, or where look_for_programs_in() said last. Where
// it would have been, if it is nowhere. Any thread.
Result<fs::path> sister_program(std::string_view name);
void look_for_programs_in(fs::path folder);
// The same word for all processes that can reach each other by this machine's local sockets and
// memory: of the kernel, and of the network namespace. Empty where the system does not say.
std::string machine_word();
// So many hex digits that nobody can guess.
Result<std::string> random_digits(std::size_t count);
// Raises this process's own limit where need be; Code::limit where it may not be raised so far.
Result<> make_room_for_descriptors(std::uint64_t more);
// Fails with what the kernel says where this process can make no file in the folder.
Result<> check_may_write(const fs::path& folder);
// Nothing can be made at `path`: the folder that it would lie in is missing.
Error missing_folder(const fs::path& path, const fs::path& folder);
void sleep_for_seconds(double seconds);
double seconds_since(std::chrono::steady_clock::time_point begin);

enum class StandardStream : std::uint8_t { output, error };
// Whether one of the program's own streams is connected to one. Asked once, at start.
bool is_terminal(StandardStream stream);

// One child; its standard output or its messages come to us line by line, the other stream and its
// input are ours. One thread.
class ChildProcess {
 public:
  enum class Stream : std::uint8_t { output, messages };
  struct Exit {
    int code = 0;    // of a normal exit
    int signal = 0;  // not 0: what ended it
  };

  // `command[0]`: the program's path; no search, no shell.
  static Result<ChildProcess> start(const std::vector<std::string>& command, Stream captured);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();  // kills it if it is still there

  std::uint64_t id() const { return static_cast<std::uint64_t>(id_); }
  // The next line without its newline, at most 1 MiB; nullopt when the stream has ended.
  Result<std::optional<std::string>> read_line();
  // Everything until the stream ends; Code::limit above `most` bytes.
  Result<std::string> read_all(std::uint64_t most);
  void kill();       // SIGKILL
  void interrupt();  // SIGINT
  // Blocks until it has ended. Call once.
  Result<Exit> wait();

 private:
  ChildProcess(int id, Descriptor stream) : id_(id), stream_(std::move(stream)) {}
  Result<bool> read_more();

  int id_ = 0;  // 0: waited for, or moved from
  Descriptor stream_;
  std::string buffer_;
};

}  // namespace ebb::libswap
