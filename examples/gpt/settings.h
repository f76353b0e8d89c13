// What gpt-train was asked to do: its flags as values.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "ebb/formats/core/dtype.h"
#include "ebb/formats/core/result.h"
#include "ebb/libmuon/plan/model.h"
#include "ebb/libmuon/step/engine.h"
#include "ebb/libswap/queue/io_queue.h"
#include "examples/gpt/model.h"
#include "examples/gpt/trainer_state.h"
#include "tools/cli/arguments.h"
#include "tools/cli/program.h"

namespace ebb::gpt {

// Memory for optimizer state, of all ranks together.
struct Budget {
  enum class Kind : std::uint8_t { all, quarter, bytes };
  Kind kind = Kind::quarter;
  std::uint64_t bytes = 0;  // Kind::bytes
};

// A checkpoint in a foreign format, written behind training from the snapshot of one step.
struct ExportRequest {
  std::string format;
  std::filesystem::path directory;
  std::uint64_t step = 0;
};

// Where the ranks page to, and how fast the directories are beside each other; no weights: alike.
struct SwapPaths {
  std::vector<std::filesystem::path> directories;
  std::vector<double> weights;
};

enum class Report : std::uint8_t { off, on };

struct Settings {
  std::optional<std::filesystem::path> text;  // none: the licence texts
  Config model;
  std::vector<std::string> freeze;  // patterns of names
  TrainerState begin;               // of a run that finds no state
  SwapPaths swap;
  std::uint32_t ranks = 4;
  std::chrono::seconds peer_limit = std::chrono::minutes(30);
  std::uint64_t steps = 150;
  Budget budget;
  std::uint64_t tile_bytes = 64 * 1024;
  libswap::IoQueue::Options io;
  DType momentum = DType::f32;
  std::optional<libmuon::Bf16> bf16;  // as EngineConfig::bf16
  libmuon::Placement placement = libmuon::Placement::owner;
  std::uint64_t stream_above_bytes = libmuon::kNothingStreamed;
  libmuon::GroupSpec matrices = libmuon::MuonSpec::keller();  // what those of the blocks get
  std::uint64_t decay_end = 150;                              // see schedule()
  std::uint64_t snapshot_every = 10;
  std::optional<std::filesystem::path> resume_from;
  libmuon::DroppedState dropped = libmuon::DroppedState::refused;
  std::optional<ExportRequest> exported;
  std::optional<std::filesystem::path> trace;
  std::optional<std::filesystem::path> stats;
  std::optional<std::filesystem::path> json;
  Report print_pid = Report::off;
  Report texts = Report::on;  // the plan before, the results after
};

const tools::Program& train_program();
// Code::usage names the flag and what it takes.
// `world`: ranks that are there already, as processes; none: as many threads as the flag says.
Result<Settings> settings_from(const tools::Arguments& arguments,
                               std::optional<std::uint32_t> world = std::nullopt);

}  // namespace ebb::gpt
