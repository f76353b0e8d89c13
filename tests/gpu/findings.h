// What one run of gpu-check found: as tables for people, as JSON for programs. Times are seconds.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ebb/formats/core/result.h"
#include "tests/gpu/scale.h"

namespace ebb::gpu {

using formats::Result;

// Copies and elementwise work.
struct Moved {
  // An exact norm does more per number than memory takes time for.
  enum class Kind : std::uint8_t { copy, norm, elementwise } kind = Kind::copy;
  std::string what;
  double seconds = 0;
  double bytes = 0;
  double rate() const { return bytes / seconds; }
};
// Rates that elementwise work is compared with, and copies of state.
inline constexpr const char *kInside = "copy inside", *kBothWays = "copies both ways, pinned";

// Newton-Schulz of a batch, or of a whole model, by a preset of ours ("ebb gram") or by others.
struct Orthogonalized {
  std::string by, what;
  double seconds = 0;
  double flops = 0;  // counted in the standard form, whichever form computed
};
inline constexpr const char *kKeller = "torch keller, compiled", *kGram = "gram-newton-schulz",
                            *kLibrary = "torch, all products cuBLASLt's";

// Steps of an engine with all of its state in one place.
struct Stepped {
  std::string home;
  double seconds = 0;     // from the first gradient handed in until the last weight is there
  double begin_s = 0;     // of that, until begin_step() had answered
  double caller_cpu = 0;  // processor time of the thread that makes the calls
  std::uint64_t matrices = 0;
  std::uint64_t read_bytes = 0, written_bytes = 0;      // of one step
  std::uint64_t planned_read = 0, planned_written = 0;  // as EnginePlan says
  std::uint64_t state_bytes = 0;
  double compute_s = 0;       // Newton-Schulz of the same matrices, with nothing beside it
  double io_s = 0;            // the same bytes, with nothing beside them
  std::string io_note = {};   // why that is no figure of a disk; empty: it is one
  std::uint32_t weights = 0;  // CRC32C of all behind the last step
  double of_bound() const { return std::max(compute_s, io_s) / seconds; }
};

struct Findings {
  std::string device, fingerprint;
  std::string disk;  // what reads and writes, and where
  std::vector<Moved> moved;
  std::vector<Orthogonalized> orthogonalized;
  std::vector<Stepped> steps;
  std::map<std::string, std::string, std::less<>> absent;  // who was not measured, and why

  // Null: not measured.
  const Moved* find_moved(std::string_view what) const;
  const Orthogonalized* find(std::string_view by, std::string_view what) const;
  // The fastest preset of ours.
  const Orthogonalized* best_of_ours(std::string_view what) const;
};

// Standard form with five iterations: what rates are said in.
double standard_flops(const Batch& batch);

// What torch_times.py wrote, into `findings`.
Result<> read_torch(const std::string& file, const Scale& scale, Findings& findings);
// Adds whole models to those whose layer was measured.
void add_models(const Scale& scale, Findings& findings);

struct Judged;
std::string tables_of(const Findings& findings);
std::string json_of(const Findings& findings, const std::vector<Judged>& goals);

}  // namespace ebb::gpu
