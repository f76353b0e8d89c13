// What a pager counts, by name.
#include "ebb/libswap/pager/tile_cache.h"

namespace ebb::libswap {

void PagerStats::add(const PagerStats& later) {
  read_bytes += later.read_bytes;
  written_bytes += later.written_bytes;
  cut_bytes += later.cut_bytes;
  retries += later.retries;
  stall_read_s += later.stall_read_s;
  stall_cut_s += later.stall_cut_s;
  resident_bytes = later.resident_bytes;
  frame_bytes = later.frame_bytes;
}

std::vector<Stat> stats_of(const PagerStats& stats) {
  constexpr auto kCounter = StatKind::counter;
  constexpr auto kGauge = StatKind::gauge;
  return {
      {"pager_read_bytes", kCounter, "Tiles paged in.", stats.read_bytes},
      {"pager_written_bytes", kCounter, "Tiles written behind the step.", stats.written_bytes},
      {"pager_cut_bytes", kCounter, "Resident tiles written for snapshots.", stats.cut_bytes},
      {"pager_retries", kCounter, "Reads and writes of tiles that were repeated.", stats.retries},
      {"pager_stall_read_seconds", kCounter, "Sleep until a tile or a frame was there.",
       stats.stall_read_s},
      {"pager_stall_cut_seconds", kCounter, "Sleep because of a snapshot.", stats.stall_cut_s},
      {"pager_resident_bytes", kGauge, "Tiles that stay in memory.", stats.resident_bytes},
      {"pager_frame_bytes", kGauge, "Frames through which the other tiles pass.",
       stats.frame_bytes},
  };
}

}  // namespace ebb::libswap
