// Steps of a whole engine on the device, one rank, with its state at home in one place after the
// other: what they take beside what computing and moving take by themselves.
#pragma once

#include <filesystem>

#include "tests/gpu/measured.h"

namespace ebb::gpu {

// Gradients and weights are bf16 and lie on the device; the same steps from the same state,
// wherever that is: Code::corrupt where the weights behind them differ. What is made in `directory`
// stays there. `findings` has all copies and all of Newton-Schulz, and gets the rest.
Result<> measure_steps(Bench& bench, const Scale& scale, const std::filesystem::path& directory,
                       Findings& findings);

}  // namespace ebb::gpu
