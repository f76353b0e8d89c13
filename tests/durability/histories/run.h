// Runs a history and compares it, at every step, with the run that nothing happens to.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/durability/histories/history.h"

namespace ebb::test {

// What was met on the way, of any number of histories.
struct Tally {
  std::uint64_t histories = 0, starts = 0, refused = 0;  // by plan()
  std::uint64_t streaming = 0;                           // starts of which some matrix is
  std::uint64_t steps = 0, errors = 0, continued = 0, went_back = 0, moved = 0;
  std::uint64_t committed = 0, pinned = 0, read = 0;
  Tally& operator+=(const Tally& other);
};
std::string text_of(const Tally& tally);

struct Verdict {
  std::string wrong = {};  // "": as it should
  Tally tally = {};
  std::vector<std::string> refused = {};  // why plans were
};
// For another process, and back.
std::string to_text(const Verdict& verdict);
Verdict verdict_from(const std::string& text);
// In a directory of its own below this one, which is gone behind it.
Verdict run_history(const History& history, const std::filesystem::path& directory);

}  // namespace ebb::test
