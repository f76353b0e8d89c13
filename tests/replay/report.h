// The runs of a case: what was measured beside what is tolerated.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ebb/libmuon/kernels/bf16.h"
#include "tests/replay/case.h"

namespace ebb::replay {

struct Measured {
  std::string run, what;  // "as_is", "update.5_vs_trace"
  double error = 0;
  double tolerance = 0;
  bool held = true;  // to the tolerance; else it is told only
  bool good() const { return !held || error <= tolerance; }
};
struct Report {
  std::vector<Measured> lines;
  std::vector<std::string> notes;
  bool good() const;
  std::string text() const;
};

// `bf16`: as EngineConfig::bf16. Errors are of what the case asks (Code::usage), or of the machine.
Result<Report> replay(const Case& one, std::optional<libmuon::Bf16> bf16);

}  // namespace ebb::replay
