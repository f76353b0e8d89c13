// Folders that torch's distributed checkpoint wrote.
#pragma once

#include <filesystem>

namespace ebb {

inline const std::filesystem::path kFixtures = std::filesystem::path(EBB_FIXTURES) / "dcp";

}  // namespace ebb
