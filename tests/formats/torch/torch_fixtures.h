// Files that torch.save wrote.
#pragma once

#include <filesystem>

namespace ebb {

inline const std::filesystem::path kFixtures = std::filesystem::path(EBB_FIXTURES) / "torch";

}  // namespace ebb
