// What all ranks bring to one call of a Communicator, and what comes of it: one place that decides,
// so that every implementation answers the same, on every rank.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/core/result.h"
#include "ebb/formats/core/units.h"
#include "ebb/libmuon/comm/communicator.h"

namespace ebb::libmuon {

enum class Verb : std::uint8_t { agree, sum, exchange };
std::string_view name_of(Verb verb);

// A buffer of a round, as its peer knows it, and whether it lies where its own rank can take it.
struct Message {
  enum class Memory : std::uint8_t { taken, no_address, foreign_device };
  Rank peer{};
  std::uint64_t bytes = 0;
  Memory memory = Memory::taken;
};
Message::Memory memory_of(const Communicator& ranks, const libswap::Buffer& buffer);

struct Contribution {
  Verb verb = Verb::agree;
  std::int64_t value = 0;                // to agree
  std::vector<std::int64_t> numbers;     // to sum
  std::vector<Message> sends, receives;  // to exchange
};
struct Decision {
  std::int64_t smallest = 0;         // of agree
  std::vector<std::int64_t> totals;  // of sum
};

// `ranks[r]`: what rank r brings. After an exchange that is well, the k-th message that a rank
// sends to another has the size of the k-th that this one receives from it.
Result<Decision> decide(std::span<const Contribution> ranks);

// The same in parts, for ranks that see only what concerns them: what one rank brings to an
// exchange, and what two of them bring to each other, as buffers' sizes in the order of the calls.
Result<> check_messages(const Contribution& mine, Rank rank, std::uint32_t world);
Result<> check_pair(Rank from, Rank to, std::span<const std::uint64_t> sent,
                    std::span<const std::uint64_t> expected);

// Why a world is over, in words that are the same on every rank.
Error gave_up(Rank rank);
Error ended(Rank rank, std::string_view how);      // "its process ended"
std::string text_of(std::span<const Rank> ranks);  // "ranks 1, 3"
Error silent(std::span<const Rank> ranks, Verb verb, std::chrono::milliseconds limit);

}  // namespace ebb::libmuon
