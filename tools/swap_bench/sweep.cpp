#include "tools/swap_bench/sweep.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/units.h"
#include "ebb/libswap/sys/process.h"
#include "tools/cli/text.h"

namespace ebb::tools::swap_bench {
namespace {

namespace fs = libswap::fs;

using Clock = std::chrono::steady_clock;
using formats::KiB;
using formats::MiB;
using libswap::ProbeFile;
using Caching = ProbeFile::Caching;
using Setting = ProbeFile::Setting;
using Traffic = ProbeFile::Traffic;

constexpr std::uint64_t kMostInFlight = 64 * MiB;  // of one direction
constexpr std::size_t kRounds = 7;
constexpr double kLeastSeconds = 0.005;  // of a measurement

// Blocks and depths that fit a file of such halves.
std::vector<Setting> settings_for(std::uint64_t half_bytes, Caching caching) {
  std::vector<Setting> settings;
  for (const std::uint64_t block : {256 * KiB, MiB, std::uint64_t{kUsualBlock}, 16 * MiB})
    for (const std::uint32_t depth : {1u, 4u, kUsualDepth, 16u})
      if (block * depth <= kMostInFlight && block <= half_bytes)
        settings.push_back({static_cast<std::uint32_t>(block), depth, caching});
  return settings;
}

struct Candidate {
  Setting setting;
  std::array<std::vector<double>, 3> measured = {};  // by traffic

  Row row() const {
    return {setting, {rate_of(measured[0]), rate_of(measured[1]), rate_of(measured[2])}};
  }
};

// One measurement of many.
struct Turn {
  Candidate* candidate = nullptr;
  Traffic traffic = Traffic::mixed;
};

// Each setting once in a round: what disturbs the disk for a while disturbs all of them. A step's
// traffic is what the advice follows from, so that every round has it. What is written to the page
// cache counts when it is on the disk, which may take long: once.
std::vector<std::vector<Turn>> rounds_of(std::vector<Candidate>& candidates, Candidate& cached) {
  std::vector<std::vector<Turn>> rounds(kRounds);
  for (std::size_t round = 0; round < kRounds; ++round) {
    for (Candidate& one : candidates)
      for (const Traffic traffic : {Traffic::read, Traffic::write, Traffic::mixed})
        if (traffic == Traffic::mixed || round % 3 == 0) rounds[round].push_back({&one, traffic});
    if (round == 0)
      for (const Traffic traffic : {Traffic::read, Traffic::write, Traffic::mixed})
        rounds[round].push_back({&cached, traffic});
  }
  return rounds;
}

// The seconds that are left are shared out anew before each measurement, because what is in flight
// at its end is waited for. Answers how many rounds there was time for, the first in any case.
Result<std::uint32_t> measure(ProbeFile& file, std::vector<Candidate>& candidates,
                              Candidate& cached, Clock::time_point end, StatusLine& status) {
  const auto rounds = rounds_of(candidates, cached);
  std::size_t left = 0, all = 0;
  for (const auto& round : rounds) all += round.size();
  left = all;
  std::uint32_t done = 0;
  for (const auto& round : rounds) {
    if (done > 0 && Clock::now() >= end) break;
    for (const Turn& turn : round) {
      if (status.due())
        status.say(compose("measuring {} x {}: {} %",
                           bytes_text(turn.candidate->setting.operation_bytes),
                           turn.candidate->setting.depth, 100 * (all - left) / all));
      const double seconds = std::chrono::duration<double>(end - Clock::now()).count();
      EBB_TRY_ASSIGN(const double rate,
                     file.measure(turn.traffic, turn.candidate->setting,
                                  std::max(kLeastSeconds, seconds / static_cast<double>(left--))));
      turn.candidate->measured[static_cast<std::size_t>(turn.traffic)].push_back(rate);
    }
    ++done;
  }
  return done;
}

Result<> check_directory(const fs::path& directory) {
  std::error_code code;
  if (fs::is_directory(directory, code)) return libswap::check_may_write(directory);
  const std::string shown = printable(directory.string());
  // Itself, or what it would lie in.
  for (fs::path there = directory; !there.empty(); there = there.parent_path()) {
    if (fs::exists(there, code) && !fs::is_directory(there, code))
      return Error{Code::io, compose("{} is a file, no directory", printable(there.string())),
                   "name the directory that state is to be paged to, such as " +
                       printable(fs::absolute(there, code).parent_path().string())};
    if (there == there.parent_path() || fs::exists(there, code)) break;
  }
  return Error{Code::io, compose("{}: there is no such directory", shown), "mkdir -p " + shown};
}

Result<> check_space(const SweepOptions& options, std::uint64_t free) {
  if (options.file_bytes <= free) return {};
  return Error{
      Code::no_space,
      compose("{} has {} free, the test file takes {}", printable(options.directory.string()),
              bytes_text(free), bytes_text(options.file_bytes)),
      free < kLeastFile ? "df -h " + printable(options.directory.string())
                        : "--size makes a smaller one: " + bytes_text(kLeastFile) + " or more"};
}

}  // namespace

Rate rate_of(std::vector<double> measured) {
  EBB_CHECK(!measured.empty());
  std::ranges::sort(measured);
  return {measured.front(), measured[measured.size() / 2], measured.back()};
}

const Row& Sweep::usual() const {
  const auto found = std::ranges::find_if(rows, &Row::usual);
  EBB_CHECK(found != rows.end());  // kLeastFile
  return *found;
}

Result<Sweep> run_sweep(const SweepOptions& options, StatusLine& status) {
  const auto begin = Clock::now();
  EBB_TRY(check_directory(options.directory));
  EBB_TRY_ASSIGN(auto chosen, libswap::open_backend(libswap::BackendChoice::automatic));
  Sweep sweep{.backend = std::string(chosen.backend->name()), .note = chosen.note};
  EBB_TRY_ASSIGN(const auto io, libswap::IoQueue::start(std::move(chosen.backend),
                                                        {.chunk_bytes = 16u << 20,
                                                         .read_bytes_in_flight = kMostInFlight,
                                                         .write_bytes_in_flight = kMostInFlight}));
  EBB_TRY_ASSIGN(sweep.free_bytes, io->backend().free_bytes(options.directory));
  EBB_TRY(check_space(options, sweep.free_bytes));
  if (status.due()) status.say(compose("writing {}", bytes_text(options.file_bytes)));
  EBB_TRY_ASSIGN(const auto file, ProbeFile::make(*io, options.directory,
                                                  {.half_bytes = options.file_bytes / 2,
                                                   .memory_bytes = kMostInFlight,
                                                   .most_seconds = options.seconds / 4,
                                                   .cancel = &stop_requested()}));
  sweep.info = file->info();
  sweep.file_bytes = 2 * file->half_bytes();

  const Caching best = sweep.info.direct ? Caching::direct : Caching::page_cache;
  std::vector<Candidate> candidates;
  for (const Setting& setting : settings_for(file->half_bytes(), best))
    candidates.push_back({setting});
  candidates.push_back({{kUsualBlock, kUsualDepth, best, libswap::Pages::small}});
  Candidate cached{{kUsualBlock, kUsualDepth, Caching::page_cache, libswap::Pages::huge}};
  const auto end = begin + std::chrono::duration_cast<Clock::duration>(
                               std::chrono::duration<double>(options.seconds));
  EBB_TRY_ASSIGN(sweep.rounds, measure(*file, candidates, cached, end, status));
  sweep.page_cache = cached.row();
  sweep.small_pages = candidates.back().row();
  candidates.pop_back();
  for (const Candidate& one : candidates) sweep.rows.push_back(one.row());
  sweep.seconds = libswap::seconds_since(begin);
  return sweep;
}

}  // namespace ebb::tools::swap_bench
