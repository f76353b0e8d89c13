// What a history is to compute: the run that nothing happens to, on one rank with all in memory.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/durability/histories/trainer.h"

namespace ebb::test {

using StoredTensors = std::map<std::string, std::vector<float>>;  // as tensors_of()

// Each by step, from 0 on.
struct Wanted {
  std::vector<Masters> masters;
  std::vector<Masters> made;  // by the step, before the trainer wrote to its weights
  std::vector<StoredTensors> stored;
  std::vector<double> norms;  // of the step's gradient
};

// In a directory below this one. An error is a fault of the run itself.
Result<Wanted> wanted_of(const Meaning& meaning, const std::filesystem::path& directory);

// "": a store holds all that is wanted, bit for bit. It may leave out masters that the trainer
// keeps.
std::string differing(const StoredTensors& stored, const StoredTensors& wanted,
                      const libmuon::ModelSpec& model);

}  // namespace ebb::test
