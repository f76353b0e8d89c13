// Public models by their parameters' shapes, as tests/fixtures/shapes has them.
#pragma once

#include <string>
#include <vector>

#include "ebb/libmuon/plan/model.h"

namespace ebb::test {

// How the experts of a layer are told.
enum class Experts : std::uint8_t {
  each,     // every one has parameters of its own
  stacked,  // [experts, rows, columns]: one parameter of each kind a layer
};

// "gpt2-124m", "gpt2-1.5b", "llama-3-8b", "llama-3-70b", "qwen3-30b-a3b"
std::vector<std::string> real_model_names();
// In forward order; matrices are group 0's, keller's Muon; the others' AdamW. Aborts the program
// where there is no such model.
libmuon::ModelSpec real_model(const std::string& name, Experts experts = Experts::each);

}  // namespace ebb::test
