// What the names of files in a folder say. Internal to formats/folders.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ebb/formats/core/byte_source.h"

namespace ebb::formats::folders {

inline constexpr std::size_t kMostRanks = 64;  // files of one kind that are read

// Of a Trainer's own, which accelerate alone does not leave.
inline constexpr std::string_view kStateFile = "trainer_state.json";
inline constexpr std::string_view kSchedulerFile = "scheduler.pt";

bool on_top(std::string_view name);

// What stands between them: nullopt where the name does not begin and end so.
std::optional<std::string_view> between(std::string_view name, std::string_view begin,
                                        std::string_view end);
// "rng_state_3.pth" -> 3.
std::optional<std::uint32_t> number_between(std::string_view name, std::string_view begin,
                                            std::string_view end);

// The files that ranks have one each of: begin, number, end.
struct RankFiles {
  std::string_view begin;
  std::string_view end;
  std::string of(std::size_t rank) const;
};
// Of random numbers: Trainer's, accelerate's.
inline constexpr RankFiles kRandomNumbers[] = {{"rng_state_", ".pth"}, {"random_states_", ".pkl"}};

bool holds_dcp(const SourceTree& tree, std::string_view folder);
bool holds_safetensors(const SourceTree& tree, std::string_view folder);

}  // namespace ebb::formats::folders
