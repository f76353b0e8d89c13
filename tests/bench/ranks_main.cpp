// ebb-ranks: ranks as processes save a state that lies in their memory, or load it. For
// tests/bench/ranks.
//   ebb-ranks save DIRECTORY WORLD BYTES     a DCP checkpoint, durable and published
//   ebb-ranks load DIRECTORY WORLD BYTES     by any number of ranks; every element is checked
// Prints: seconds (from when all ranks are ready to when the last is through), the peak memory of
// all ranks together in MiB, the state among it, and their user and system seconds meanwhile.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <vector>

#include "ebb/formats/conversion/memory_content.h"
#include "ebb/formats/describe.h"
#include "ebb/formats/registry.h"
#include "ebb/libswap/read/load.h"
#include "ebb/libswap/sys/aligned_buffer.h"
#include "ebb/libswap/sys/process.h"
#include "ebb/libswap/tree/file_tree.h"
#include "ebb/libswap/write/save.h"
#include "tests/bench/process_ranks.h"

namespace ebb {

namespace {

using libswap::AlignedBuffer;

constexpr std::uint64_t kTensors = 16;
constexpr std::uint64_t kColumns = 4096;
constexpr std::uint64_t kPage = 4096;

struct Task {
  std::string_view verb;
  const char* directory = nullptr;
  std::uint32_t world = 1;
  std::uint64_t bytes = 0;
};

Catalog described(std::uint64_t bytes) {
  Catalog catalog;
  for (std::uint64_t i = 0; i < kTensors; ++i) {
    TensorEntry tensor;
    tensor.name = "layers." + std::to_string(i) + ".weight";
    tensor.state = "param";
    tensor.shape = {bytes / kTensors / kColumns / sizeof(float), kColumns};
    catalog.tensors.push_back(std::move(tensor));
  }
  return catalog;
}

struct Spent {
  double seconds = 0;
  double user_s = 0;
  double system_s = 0;
};
using AllSpent = std::array<Spent, bench::Meeting::kMost>;

// By rank, in memory that the ranks' processes share.
std::shared_ptr<AllSpent> make_shared_spent() {
  void* const place =
      ::mmap(nullptr, sizeof(AllSpent), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (place == MAP_FAILED) return nullptr;
  return {new (place) AllSpent{}, [](AllSpent* spent) { ::munmap(spent, sizeof(AllSpent)); }};
}

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

// What an element must be, so that one in a wrong place is found.
std::uint32_t element(std::uint64_t tensor, std::uint64_t flat) {
  const std::uint64_t mixed = (tensor << 40 | flat) * 0x9e3779b97f4a7c15u;
  return static_cast<std::uint32_t>(mixed >> 33);  // never a NaN's bits: the sign is 0
}

// One rank: its rows of every tensor, each beginning at a page's border.
class Rank {
 public:
  Rank(const Task& task, std::uint32_t number, std::shared_ptr<bench::Meeting> meeting)
      : task_(task), number_(number), ranks_(std::move(meeting), number) {}

  Result<> run(Spent& spent) {
    EBB_TRY(lay_out());
    for (const Part& part : parts_)
      if (task_.verb == "save")
        visit(part, [](std::byte* place, std::uint32_t bits) {
          std::memcpy(place, &bits, sizeof(bits));
          return true;
        });
      else
        std::ranges::fill(part.memory, std::byte{0xff});  // touched
    EBB_TRY_ASSIGN(auto backend, libswap::open_backend(libswap::BackendChoice::automatic));
    EBB_TRY_ASSIGN(const auto io, libswap::IoQueue::start(std::move(backend.backend), {}));
    EBB_TRY(ranks_.agree(1));
    rusage before{}, after{};
    ::getrusage(RUSAGE_SELF, &before);
    const auto start = std::chrono::steady_clock::now();
    EBB_TRY(agree_all(ranks_, task_.verb == "save" ? save(*io) : load(), "moving its part"));
    spent.seconds = libswap::seconds_since(start);
    ::getrusage(RUSAGE_SELF, &after);
    spent.user_s = seconds(after.ru_utime) - seconds(before.ru_utime);
    spent.system_s = seconds(after.ru_stime) - seconds(before.ru_stime);
    return task_.verb == "save" ? Result<>() : compare();
  }

 private:
  struct Part {
    std::uint32_t tensor = 0;
    Box box;
    std::span<std::byte> memory;
  };

  Result<> lay_out() {
    std::vector<Shape> shapes;
    for (const auto& tensor : catalog_.tensors) shapes.push_back(tensor.shape);
    EBB_TRY_ASSIGN(const Layout layout,
                   Layout::make({.policy = Policy::rows, .mesh = {task_.world, 1}}, shapes));
    std::uint64_t all = 0;
    for (std::uint32_t t = 0; t < kTensors; ++t)
      all += formats::align_up(layout.local_elems(t, formats::Rank{number_}) * 4, kPage);
    EBB_TRY_ASSIGN(memory_, AlignedBuffer::allocate(all));
    std::span<std::byte> left = memory_.bytes();
    for (std::uint32_t t = 0; t < kTensors; ++t)
      for (const formats::Piece& piece : layout.pieces(t, formats::Rank{number_})) {
        const std::uint64_t bytes = formats::volume(piece.box.extent) * 4;
        parts_.push_back({t, piece.box, left.first(bytes)});
        left = left.subspan(formats::align_up(bytes, kPage));
      }
    return {};
  }

  // Calls what(place, bits) for each element until one answers false.
  template <typename What>
  bool visit(const Part& part, What what) const {
    std::uint64_t at = 0;
    bool good = true;
    for_each_run(catalog_.tensors[part.tensor].shape, part.box, [&](FlatRange run) {
      for (std::uint64_t i = 0; good && i < run.count; ++i, at += 4)
        good = what(part.memory.data() + at, element(part.tensor, run.first + i));
    });
    return good;
  }

  Result<> save(libswap::IoQueue& io) {
    std::vector<formats::Held> held;
    for (const Part& part : parts_) held.push_back({part.tensor, part.box, part.memory});
    EBB_TRY_ASSIGN(const auto content, formats::MemoryContent::make(catalog_, std::move(held)));
    EBB_TRY(libswap::save(io, ranks_, content,
                          {.format = *formats::format_named("dcp"),
                           .rank = formats::Rank{number_},
                           .world = task_.world},
                          task_.directory));
    return {};
  }

  Result<> load() {
    EBB_TRY_ASSIGN(auto tree, libswap::open_tree(task_.directory));
    EBB_TRY_ASSIGN(const auto checkpoint, formats::describe(std::move(tree)));
    std::vector<libswap::Wanted> wanted;
    for (const Part& part : parts_) {
      const auto& tensors = checkpoint->catalog().tensors;
      const auto found =
          std::ranges::find(tensors, catalog_.tensors[part.tensor].name, &TensorEntry::name);
      if (found == tensors.end())
        return Error{Code::incomplete, "no " + catalog_.tensors[part.tensor].name};
      wanted.push_back(
          {static_cast<std::uint32_t>(found - tensors.begin()), part.box, part.memory});
    }
    EBB_TRY(libswap::load(*checkpoint, wanted));
    return {};
  }

  Result<> compare() const {
    for (const Part& part : parts_)
      if (!visit(part, [](const std::byte* place, std::uint32_t bits) {
            return std::memcmp(place, &bits, sizeof(bits)) == 0;
          }))
        return Error{Code::corrupt, catalog_.tensors[part.tensor].name + " arrived changed"};
    return {};
  }

  const Task& task_;
  std::uint32_t number_;
  bench::ProcessRank ranks_;
  Catalog catalog_ = described(task_.bytes);
  AlignedBuffer memory_;
  std::vector<Part> parts_;
};

int fail(std::string_view why) {
  std::fprintf(stderr, "ebb-ranks: %.*s\n", static_cast<int>(why.size()), why.data());
  return 2;
}

// The exit status of a rank.
int run_rank(const Task& task, std::uint32_t number, std::shared_ptr<bench::Meeting> meeting,
             Spent& spent) {
  const Result<> done = Rank(task, number, std::move(meeting)).run(spent);
  return done ? 0 : fail(done.error().message);
}

int run(const Task& task) {
  const auto meeting = bench::Meeting::make(task.world);
  const auto spent = make_shared_spent();
  if (meeting == nullptr || spent == nullptr) return fail("no such number of ranks");
  std::vector<pid_t> children;
  for (std::uint32_t rank = 0; rank < task.world; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(run_rank(task, rank, meeting, (*spent)[rank]));
    if (child > 0) children.push_back(child);
  }
  int status = 0;
  if (children.size() != task.world) {  // nobody comes to the meeting
    status = fail("cannot start a process");
    for (const pid_t child : children) ::kill(child, SIGKILL);
  }
  long peak = 0;
  for (const pid_t child : children) {
    int exit = 0;
    rusage usage{};
    if (::wait4(child, &exit, 0, &usage) != child || exit != 0) status = 2;
    peak += usage.ru_maxrss;
  }
  Spent all{.seconds = spent->front().seconds};
  for (const Spent& rank : *spent) {
    all.user_s += rank.user_s;
    all.system_s += rank.system_s;
  }
  std::printf("%.4f %ld %.4f %.4f\n", all.seconds, peak / 1024, all.user_s, all.system_s);
  return status;
}

}  // namespace

int program_main(int argc, char** argv) {
  const auto number = [&](int i, auto& out) {
    const std::string_view word = argv[i];
    return std::from_chars(word.data(), word.data() + word.size(), out).ec == std::errc();
  };
  Task task;
  if (argc != 5 || !number(3, task.world) || !number(4, task.bytes))
    return fail("save|load DIRECTORY WORLD BYTES");
  task.verb = argv[1];
  task.directory = argv[2];
  if (task.verb != "save" && task.verb != "load") return fail("save or load");
  return run(task);
}

}  // namespace ebb

int main(int argc, char** argv) { return ebb::program_main(argc, argv); }
