#include "tools/swap_bench/sweep.h"

#include <algorithm>
#include <array>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/units.h"
#include "ebb/libswap/sys/process.h"
#include "tools/cli/text.h"

namespace ebb::tools::swap_bench {
namespace {

namespace fs = libswap::fs;

using formats::KiB;
using formats::MiB;
using libswap::ProbeFile;
using Caching = ProbeFile::Caching;
using Setting = ProbeFile::Setting;
using Traffic = ProbeFile::Traffic;

constexpr std::uint64_t kMostInFlight = 64 * MiB;  // of one direction
constexpr int kRounds = 3;
constexpr std::uint32_t kUsualBlock = 4u << 20;
constexpr std::uint32_t kUsualDepth = 8;

// Blocks and depths that fit a file of such halves.
std::vector<Setting> settings_for(std::uint64_t half_bytes, Caching caching) {
  std::vector<Setting> settings;
  for (const std::uint64_t block : {256 * KiB, MiB, 4 * MiB, 16 * MiB})
    for (const std::uint32_t depth : {1u, 4u, kUsualDepth, 16u})
      if (block * depth <= kMostInFlight && block <= half_bytes)
        settings.push_back({static_cast<std::uint32_t>(block), depth, caching});
  return settings;
}

double median(std::array<double, kRounds> values) {
  std::ranges::sort(values);
  return values[kRounds / 2];
}

struct Candidate {
  Setting setting;
  std::array<std::array<double, kRounds>, 3> measured{};  // by traffic

  Row row() const {
    return {setting, {median(measured[0]), median(measured[1]), median(measured[2])}};
  }
};

std::string percent(std::size_t done, std::size_t all) {
  return std::to_string(100 * done / all) + " %";
}

// Each setting once in a round: what disturbs the disk for a while disturbs all of them.
Result<> measure(ProbeFile& file, std::vector<Candidate>& candidates, double seconds,
                 StatusLine& status) {
  const std::size_t all = candidates.size() * 3 * kRounds;
  std::size_t done = 0;
  for (int round = 0; round < kRounds; ++round)
    for (Candidate& one : candidates)
      for (const Traffic traffic : {Traffic::read, Traffic::write, Traffic::mixed}) {
        if (status.due())
          status.say(compose("measuring {} x {}: {}", bytes_text(one.setting.operation_bytes),
                             one.setting.depth, percent(done, all)));
        ++done;
        EBB_TRY_ASSIGN(
            one.measured[static_cast<std::size_t>(traffic)][static_cast<std::size_t>(round)],
            file.measure(traffic, one.setting, seconds / static_cast<double>(all)));
      }
  return {};
}

Result<> check_directory(const fs::path& directory) {
  std::error_code code;
  if (fs::is_directory(directory, code)) return libswap::check_may_write(directory);
  const std::string shown = printable(directory.string());
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

Result<Sweep> run_sweep(const SweepOptions& options, StatusLine& status) {
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
  const std::uint32_t block =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(kUsualBlock, file->half_bytes()));
  candidates.push_back({{block, kUsualDepth, best, libswap::Pages::huge}});
  candidates.push_back({{block, kUsualDepth, Caching::page_cache, libswap::Pages::huge}});
  candidates.push_back({{block, kUsualDepth, best, libswap::Pages::small}});
  EBB_TRY(measure(*file, candidates, options.seconds, status));
  sweep.small_pages = candidates.back().row();
  sweep.page_cache = candidates[candidates.size() - 2].row();
  sweep.usual = candidates[candidates.size() - 3].row();
  candidates.resize(candidates.size() - 3);
  for (const Candidate& one : candidates) sweep.rows.push_back(one.row());
  return sweep;
}

}  // namespace ebb::tools::swap_bench
