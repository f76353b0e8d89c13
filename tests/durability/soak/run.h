// A run: one training that is killed several times at random moments, started again each time as
// something else - other ranks, budget, tile size, threads or processes - and at last left to end.
#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <string>

#include "tests/durability/draws.h"
#include "tests/durability/soak/start.h"

namespace ebb::soak {

struct Figures {
  std::uint64_t kills = 0, runs = 0, identical = 0, refused = 0, hung = 0, starts = 0;
  std::uint64_t newer = 0;        // kills behind a generation newer than the start's
  std::uint64_t of_one_rank = 0;  // the others had to end by themselves
  std::array<std::uint64_t, kPhases> by_phase{};
};

class Run {
 public:
  // In a folder of its own, which goes with it.
  Run(std::filesystem::path folder, const Reference& reference, test::Draws& draws,
      std::array<double, kPhases>& seconds_in, Figures& figures);
  ~Run();

  // Kills it so often, then lets it end, and counts all of that.
  void run(std::uint64_t kills);

 private:
  enum class Outcome : std::uint8_t { killed, ended, bad };
  Start draw_start();
  void draw_places(Start& start, bool same_ranks);
  Phase draw_target(std::uint64_t kill);
  Outcome start_and_kill(const Start& start, std::optional<Phase> target);
  enum class Waited : std::uint8_t { reached, ended, hung };
  Waited wait_for(const Board& board, int leader, Phase target);
  void kill_somebody(const Start& start, const Board& board, int leader);
  // Collects all processes of the start; how the leader ended, nullopt if it did not.
  std::optional<Ended> collect(int leader);
  bool take_in(const Start& start, const Board& board);
  Outcome blame(const std::string& why);

  const std::filesystem::path folder_;
  const Reference& reference_;
  test::Draws& draws_;
  std::array<double, kPhases>& seconds_in_;  // mean length of a phase, as far as it is known
  Figures& figures_;
  const Places places_;
  std::optional<Start> last_;
  std::uint64_t folders_ = 0;  // that were named, where each rank has its own
  std::uint64_t committed_ = 0, exported_ = 0;
  std::string story_;
  bool good_ = true;
};

}  // namespace ebb::soak
