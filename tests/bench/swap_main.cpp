// ebb-swap-rounds DIRECTORY BYTES: for tests/bench/swap. Reads what to measure next, one word a
// line, and answers with one line each: seconds user_s system_s io_thread_s read_bytes
// written_bytes, or "error" and why. An empty line or the end of the input ends it.
#include <charconv>
#include <iostream>
#include <map>
#include <string>

#include "ebb/libswap/queue/disk_probe.h"
#include "tests/bench/swap_limit.h"
#include "tests/bench/swap_step.h"

namespace ebb {

namespace {

using bench::Checksums;
using bench::PagedStep;
using bench::PlainDisk;
using bench::StepTimes;

const std::map<std::string, PlainDisk::Mix, std::less<>>& mixes() {
  using Order = PlainDisk::Mix::Order;
  static const std::map<std::string, PlainDisk::Mix, std::less<>> mixes = {
      {"limit-512k-8", {512u << 10, 8, Order::together}},
      {"limit-1m-8", {1u << 20, 8, Order::together}},
      {"limit-4m-4", {4u << 20, 4, Order::together}},
      {"limit-4m-8", {4u << 20, 8, Order::together}},
      {"limit-4m-8-turns", {4u << 20, 8, Order::in_turns}},
  };
  return mixes;
}

class Rounds {
 public:
  Rounds(std::filesystem::path directory, std::uint64_t bytes)
      : directory_(std::move(directory)), bytes_(bytes) {}

  Result<StepTimes> measure(const std::string& what) {
    if (what == "bare-limit") return limit("bare", mixes().at("limit-4m-8"));
    if (const auto mix = mixes().find(what); mix != mixes().end())
      return limit("step", mix->second);
    if (what == "probe") return predicted();
    EBB_TRY_ASSIGN(PagedStep * step, step_named(what));
    return step->step(what == "bare" ? PagedStep::Work::none : PagedStep::Work::update);
  }
  Result<> compare() {
    for (const auto& [name, step] : steps_) EBB_TRY(step->compare());
    return {};
  }

 private:
  // Of the disk where that step reads and writes.
  Result<StepTimes> limit(const std::string& of, const PlainDisk::Mix& mix) {
    if (plain_ == nullptr) {
      EBB_TRY_ASSIGN(plain_, PlainDisk::make());
    }
    EBB_TRY_ASSIGN(PagedStep * step, step_named(of));
    EBB_TRY_ASSIGN(const bench::Places places, step->places());
    StepTimes times;
    times.read_bytes = times.written_bytes = places.reads.size() * places.content.size();
    EBB_TRY_ASSIGN(times.seconds, plain_->run(places, mix));
    return times;
  }
  // A step's bytes at the rate that our own probe of the disk finds in a moment.
  Result<StepTimes> predicted() {
    EBB_TRY_ASSIGN(auto backend, libswap::open_backend(libswap::BackendChoice::automatic));
    EBB_TRY_ASSIGN(const auto io, libswap::IoQueue::start(std::move(backend.backend), {}));
    EBB_TRY_ASSIGN(const auto disk,
                   libswap::measure_disk(*io, directory_,
                                         {.bytes = std::max<std::uint64_t>(bytes_ / 4, 4u << 20)}));
    StepTimes times{.read_bytes = bytes_, .written_bytes = bytes_};
    times.seconds = static_cast<double>(2 * bytes_) / disk.mixed;
    return times;
  }
  // Each has a store of its own, made when it is first asked for. "bare" computes nothing at all.
  Result<PagedStep*> step_named(const std::string& what) {
    const std::string name = what == "bare" ? "unchecked" : what;
    std::unique_ptr<PagedStep>& step = steps_[name];
    if (step != nullptr) return step.get();
    PagedStep::Config config{.directory = directory_ / name, .state_bytes = bytes_};
    if (name == "unchecked")
      config.checksums = Checksums::off;
    else if (name == "resident25")
      config.resident = 0.25;
    else if (name == "threads")
      config.backend = libswap::BackendChoice::threads;
    else if (name != "step")
      return Error{Code::usage, "nothing is called " + what};
    EBB_TRY_ASSIGN(step, PagedStep::make(config));
    EBB_TRY(step->step(PagedStep::Work::update));  // memory is touched, slots are written
    return step.get();
  }

  std::filesystem::path directory_;
  std::uint64_t bytes_;
  std::unique_ptr<PlainDisk> plain_;
  std::map<std::string, std::unique_ptr<PagedStep>> steps_;
};

void answer(const Result<StepTimes>& times) {
  if (!times) {
    std::cout << "error " << times.error().message << std::endl;
    return;
  }
  std::cout << times->seconds << ' ' << times->user_s << ' ' << times->system_s << ' '
            << times->io_thread_s << ' ' << times->read_bytes << ' ' << times->written_bytes
            << std::endl;
}

}  // namespace

int program_main(int argc, char** argv) {
  std::uint64_t bytes = 0;
  const std::string_view word = argc == 3 ? argv[2] : "";
  if (std::from_chars(word.data(), word.data() + word.size(), bytes).ec != std::errc()) {
    std::cerr << "ebb-swap-rounds DIRECTORY BYTES\n";
    return 2;
  }
  Rounds rounds(argv[1], bytes);
  for (std::string what; std::getline(std::cin, what) && !what.empty();)
    answer(rounds.measure(what));
  const Result<> same = rounds.compare();
  if (!same) std::cerr << "ebb-swap-rounds: " << same.error().message << "\n";
  return same ? 0 : 1;
}

}  // namespace ebb

int main(int argc, char** argv) { return ebb::program_main(argc, argv); }
