// A history of an engine, as a value: what is computed, and the starts of the process that compute
// it, each as another configuration. What is computed is the same bits however it is started.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ebb/libmuon/step/engine.h"

namespace ebb::test {

inline constexpr std::uint64_t kHistorySteps = 7;

// What bits depend on.
struct Meaning {
  std::uint64_t seed = 0;  // of gradients
  libmuon::MuonSpec muon;
  DType momentum = DType::f32;
  libmuon::Out out = libmuon::Out::weights;
  bool absent = false;                   // some parameters have no gradient in some steps
  bool scheduled = false;                // another learning rate in each step
  bool writes = false;                   // the trainer writes weights between steps
  std::uint64_t tall = 400, wide = 300;  // the long sides of two matrices
};

enum class Failing : std::uint8_t { nothing, disk, disk_and_sync };

// How one start of the process is configured, and how far it comes.
struct Start {
  std::uint32_t ranks = 1;
  Policy gradients = Policy::replicated, weights = Policy::replicated;
  std::uint32_t gradient_copies = 1, weight_copies = 1;  // HSDP: so many times
  bool tensor_axis = false;
  libmuon::Placement placement = libmuon::Placement::owner;
  libmuon::HandIn hand_in = libmuon::HandIn::reduced;
  libmuon::PartialSums sums = libmuon::PartialSums::made_twice;
  std::uint32_t micro_batches = 1;
  std::uint32_t hand_in_threads = 1;
  DType gradient = DType::f32, weight = DType::f32;
  libmuon::Masters masters = libmuon::Masters::kept;
  bool bound = false;  // what is new begins with bound weights
  std::uint64_t tile_bytes = 65536, chunk_bytes = 256u << 20, early_bytes = 0;
  std::uint64_t stream_above = libmuon::kNothingStreamed;
  std::uint32_t threads = 1, slots = 3;
  double budget = 0;  // times the least; 0: all is resident
  Failing failing = Failing::nothing;
  bool wanders = false;        // goes back, moves to another directory, pins, of its own accord
  std::uint64_t until = 1;     // its last step
  bool ends_committed = true;  // else it just stops
  std::uint64_t seed = 0;      // of what happens on the way
};

struct History {
  std::uint64_t seed = 0;
  Meaning meaning;
  std::vector<Start> starts;
};

// The same for the same seed, on every machine.
History draw_history(std::uint64_t seed);
std::string text_of(const Meaning& meaning);
std::string text_of(const Start& start);

// What may be made simpler about a history, each by a name of its own: "2.tiles", "1".
struct Simplification {
  std::string name;
  std::function<void(History&)> apply;
};
std::vector<Simplification> simplifications_of(const History& history);
// Those of these names. Code::usage for one that there is not.
Result<History> simplified(const History& history, const std::vector<std::string>& names);

}  // namespace ebb::test
