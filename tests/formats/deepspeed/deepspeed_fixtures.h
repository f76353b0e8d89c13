// Checkpoints that DeepSpeed wrote.
#pragma once

#include <filesystem>
#include <string_view>

namespace ebb {

inline const std::filesystem::path kFixtures = std::filesystem::path(EBB_FIXTURES) / "deepspeed";
// What the engine does next, and what its observer noticed, are in no checkpoint.
inline constexpr std::string_view kNotStored[] = {"next_loss", "next_loss2", "notes", "from"};

}  // namespace ebb
