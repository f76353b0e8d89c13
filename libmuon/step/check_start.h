// What an engine is told to begin from: whether it can be, and what all ranks must say alike.
// Private to libmuon/step.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ebb/libmuon/step/start.h"
#include "ebb/libswap/store/alike.h"

namespace ebb::libmuon {

// A store that is about to be resumed.
struct FoundStore {
  formats::native::Uuid uuid{};
  std::uint64_t generation = 0, step = 0;
};
// Code::state where that is not the expected one.
Result<> check(const ExpectedStore& expected, const FoundStore& found);

// Code::usage for what says two things at once, or nothing to begin from; Code::state where a store
// is expected and none is there. `store`: the directory has one.
Result<> check(const Start& start, std::size_t params, bool store, const std::string& directory);
// What all ranks must say alike.
std::vector<libswap::Setting> settings_of(const Start& start);

}  // namespace ebb::libmuon
