// What a GPU is to reach, held to what was found.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/gpu/findings.h"

namespace ebb::gpu {

enum class Verdict : std::uint8_t { ok, failed, not_measured, figure };

struct Judged {
  std::string what;
  std::optional<double> found;
  std::optional<double> goal;  // none: a figure beside the others
  enum class Way : std::uint8_t { at_least, at_most } way = Way::at_least;
  std::string why = {};  // where it is not measured
  Verdict verdict() const;
};

std::vector<Judged> judge(const Scale& scale, const Findings& findings);
// The table, and how many failed.
std::string text_of(const std::vector<Judged>& goals);
std::size_t count_failed(const std::vector<Judged>& goals);

}  // namespace ebb::gpu
