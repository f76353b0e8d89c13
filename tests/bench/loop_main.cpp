// ebb-loop: the plainest way to move bytes and look at each: pread or pwrite in blocks of 4 MiB and
// a CRC32C, on as many threads as asked for. For tests/bench/memory.
//   ebb-loop write|read|copy FILE BYTES THREADS
// copy: FILE is read, written as FILE.copy, and that is read back, as a conversion that proves its
// result does; block by block. All else goes from or to memory that is there before the clock
// starts. Prints: seconds user_s system_s.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/core/crc32c.h"
#include "ebb/libswap/read/in_parallel.h"
#include "ebb/libswap/sys/aligned_buffer.h"
#include "ebb/libswap/sys/errno_error.h"
#include "ebb/libswap/sys/process.h"
#include "ebb/libswap/sys/unique.h"

namespace ebb {

namespace {

constexpr std::uint64_t kBlock = std::uint64_t{4} << 20;

struct Task {
  std::string verb, file;
  std::uint64_t bytes = 0;
  std::uint32_t threads = 1;
};

Result<libswap::Descriptor> opened(const std::string& file, int flags) {
  libswap::Descriptor descriptor(::open(file.c_str(), flags | O_CLOEXEC, 0600));
  if (!descriptor) return libswap::errno_error(errno, "cannot open " + file);
  return descriptor;
}

Result<> moved(ssize_t count, std::size_t wanted) {
  if (count == static_cast<ssize_t>(wanted)) return {};
  return Error{Code::io, "a transfer of the loop was short"};
}

Result<> read_block(int file, std::uint64_t at, std::span<std::byte> into) {
  return moved(::pread(file, into.data(), into.size(), static_cast<off_t>(at)), into.size());
}

Result<> write_block(int file, std::uint64_t at, std::span<const std::byte> from) {
  return moved(::pwrite(file, from.data(), from.size(), static_cast<off_t>(at)), from.size());
}

class Loop {
 public:
  explicit Loop(Task task) : task_(std::move(task)) {}

  Result<> prepare() {
    const bool copies = task_.verb == "copy";
    const std::uint64_t room = copies ? task_.threads * kBlock : task_.bytes;
    EBB_TRY_ASSIGN(memory_, libswap::AlignedBuffer::allocate(room));
    for (std::uint64_t i = 0; i < room; ++i)
      memory_.bytes()[i] = static_cast<std::byte>(i * i >> 7);
    const int make = O_RDWR | O_CREAT | O_TRUNC;
    EBB_TRY_ASSIGN(file_, opened(task_.file, task_.verb == "write" ? make : O_RDONLY));
    if (copies) {
      EBB_TRY_ASSIGN(copy_, opened(task_.file + ".copy", make));
    }
    return {};
  }
  Result<> run() {
    return libswap::in_parallel(task_.threads, [this](const std::atomic<bool>& stop) -> Result<> {
      const std::uint32_t worker = workers_.fetch_add(1);
      while (!stop.load()) {
        const std::uint64_t at = next_.fetch_add(kBlock);
        if (at >= task_.bytes) break;
        EBB_TRY(move(worker, at, std::min(kBlock, task_.bytes - at)));
      }
      return {};
    });
  }
  std::uint32_t crc() const { return crc_.load(); }

 private:
  Result<> move(std::uint32_t worker, std::uint64_t at, std::uint64_t size) {
    const bool copies = task_.verb == "copy";
    const auto block = memory_.bytes().subspan(copies ? worker * kBlock : at, size);
    if (task_.verb != "write") EBB_TRY(read_block(file_.get(), at, block));
    crc_ ^= formats::crc32c(0, block);
    if (task_.verb == "write") EBB_TRY(write_block(file_.get(), at, block));
    if (!copies) return {};
    EBB_TRY(write_block(copy_.get(), at, block));
    EBB_TRY(read_block(copy_.get(), at, block));
    crc_ ^= formats::crc32c(0, block);
    return {};
  }

  Task task_;
  libswap::AlignedBuffer memory_;
  libswap::Descriptor file_, copy_;
  std::atomic<std::uint64_t> next_ = 0;
  std::atomic<std::uint32_t> workers_ = 0;
  std::atomic<std::uint32_t> crc_ = 0;  // so that nobody leaves the checksums out
};

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

int fail(std::string_view why) {
  std::fprintf(stderr, "ebb-loop: %.*s\n", static_cast<int>(why.size()), why.data());
  return 2;
}

int run(const Task& task) {
  Loop loop(task);
  if (const Result<> ready = loop.prepare(); !ready) return fail(ready.error().message);
  rusage before{}, after{};
  ::getrusage(RUSAGE_SELF, &before);
  const auto begin = std::chrono::steady_clock::now();
  if (const Result<> done = loop.run(); !done) return fail(done.error().message);
  const double took = libswap::seconds_since(begin);
  ::getrusage(RUSAGE_SELF, &after);
  std::printf("%.4f %.4f %.4f\n", took, seconds(after.ru_utime) - seconds(before.ru_utime),
              seconds(after.ru_stime) - seconds(before.ru_stime));
  return loop.crc() == 1 ? 3 : 0;
}

}  // namespace

int program_main(int argc, char** argv) {
  const std::vector<std::string_view> words(argv, argv + argc);
  Task task;
  const auto number = [&](std::size_t i, auto& out) {
    const std::string_view word = words[i];
    return std::from_chars(word.data(), word.data() + word.size(), out).ec == std::errc();
  };
  if (argc != 5 || !number(3, task.bytes) || !number(4, task.threads) || task.threads == 0)
    return fail("write|read|copy FILE BYTES THREADS");
  task.verb = words[1];
  task.file = words[2];
  if (task.verb != "write" && task.verb != "read" && task.verb != "copy")
    return fail("write, read or copy");
  return run(task);
}

}  // namespace ebb

int main(int argc, char** argv) { return ebb::program_main(argc, argv); }
