// What a training in other processes tells the one that is going to kill it, in shared memory.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

namespace ebb::soak {

enum class Phase : std::uint32_t { create, resume, step, snapshot, write_dcp, over };
constexpr std::size_t kPhases = 5;  // in which a rank can be killed
constexpr std::array<std::string_view, kPhases> kPhaseNames = {"create", "resume", "step",
                                                               "snapshot", "export"};
constexpr std::size_t index_of(Phase phase) { return static_cast<std::size_t>(phase); }

struct Board {
  static constexpr std::uint32_t kMostRanks = 8;

  std::array<std::atomic<int>, kMostRanks> process{};  // 0: not there yet
  std::array<std::atomic<Phase>, kMostRanks> phase{};
  std::atomic<std::uint32_t> opened = 0;     // ranks whose engine is open
  std::atomic<std::uint64_t> began_at = 0;   // step
  std::atomic<std::uint64_t> committed = 0;  // step of the newest generation that a rank was told
  std::atomic<std::uint64_t> exported = 0;   // step of the newest export that was reported written
  std::atomic<std::uint32_t> wrong_bits =
      0;                           // weights or an export with others than they must have
  std::atomic<bool> lost = false;  // something that was promised is not there
  std::array<std::atomic<std::uint64_t>, kPhases> spent_us{}, entered{};  // of rank 0
  std::atomic<bool> failed = false;
  std::array<char, 1024> error{};  // the first

  void fail(std::string_view message) {
    if (failed.exchange(true)) return;
    message.copy(error.data(), error.size() - 1);
  }
};

// Maps one; processes that are forked later share it.
std::shared_ptr<Board> make_board();

// The weights of a run that nothing happened to: a hash by step. Processes share it, too.
struct Reference {
  static constexpr std::uint64_t kSteps = 600;
  std::array<std::atomic<std::uint64_t>, kSteps + 1> hash{};
};
std::shared_ptr<Reference> make_reference();

}  // namespace ebb::soak
