// What is measured, in which sizes: those that goals are about, and small ones that a test runs
// over the stub in seconds.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "ebb/formats/core/compose.h"

namespace ebb::gpu {

struct Batch {
  std::uint64_t count = 1, rows = 0, cols = 0;
  bool operator==(const Batch&) const = default;
  std::string text() const { return formats::compose("{} x {} x {}", count, rows, cols); }
};

// A language model's matrices, layer by layer, as LLaMA has them.
struct Model {
  const char* name = "";
  std::uint64_t hidden = 0, wide = 0, layers = 32;
  // q, k, v, o; gate and up; down.
  std::array<Batch, 3> layer() const {
    return {Batch{4, hidden, hidden}, Batch{2, wide, hidden}, Batch{1, hidden, wide}};
  }
  std::uint64_t matrices() const { return 7 * layers; }
  // One layer is measured.
  std::string text() const { return formats::compose("{} ({} x one layer)", name, layers); }
};

// How often a call is timed: the least of the rounds, each of so many calls, counts.
struct Rounds {
  int rounds = 7, calls = 8;
};

struct Scale {
  Rounds timed = {};
  std::uint64_t copy_bytes = 256u << 20;
  std::uint64_t elems = 64u << 20;  // of elementwise work
  // Batches that have a goal: how many times as fast as Keller's form, compiled by torch.
  struct Goal {
    Batch batch;
    double over_keller = 0;
  };
  std::vector<Goal> goals = {{{1, 4096, 4096}, 1}, {{1, 4096, 11008}, 1.1}, {{64, 512, 2048}, 1.2}};
  Model of_7b = {"7B-shaped", 4096, 11008};
  // What an engine steps, three times: 405 million parameters, 3.2 GB of state.
  Model stepped = {"the step's", 1024, 2752};
  std::uint64_t tile_bytes = 4u << 20;
  std::uint64_t steps = 4;  // behind one that is not counted
  bool judged = true;       // whether its figures say something about goals

  static Scale full() { return {}; }
  static Scale small() {
    return {.timed = {1, 1},
            .copy_bytes = 1u << 20,
            .elems = 1u << 14,
            .goals = {{{1, 48, 48}, 1}, {{1, 48, 80}, 1}, {{4, 16, 48}, 1}},
            .of_7b = {"7B-shaped", 48, 80, 2},
            .stepped = {"the step's", 16, 48},
            .tile_bytes = 16u << 10,
            .steps = 2,
            .judged = false};
  }

  // All whose Newton-Schulz is timed, each once.
  std::vector<Batch> batches() const;
};

}  // namespace ebb::gpu
