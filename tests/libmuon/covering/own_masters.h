// Masters of a trainer that is handed out updates: one rank's, and files through which they go from
// run to run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "ebb/libmuon/plan/state_plan.h"
#include "tests/libmuon/covering/bucket.h"

namespace ebb::test {

class OwnMasters {
 public:
  // Of parameters with Out::update: what `folder` has of them, or initial weights.
  OwnMasters(const libmuon::ModelSpec& model, const libmuon::StatePlan& plan,
             const std::filesystem::path& folder);

  bool has(std::uint32_t param) const { return values_.contains(param); }
  void add(std::uint32_t param, Bucket& updates);
  void set(std::uint32_t param, std::uint64_t place, float value) {
    values_.at(param)[place] = value;
  }
  // This rank's elements; all ranks' are there when all have saved.
  Result<> save() const;
  // Whole ones, by "name master".
  void put_into(std::map<std::string, std::vector<float>>& tensors) const;
  float at(std::uint32_t param, std::uint64_t place) const { return values_.at(param)[place]; }

 private:
  std::filesystem::path file_of(std::uint32_t param) const;

  const libmuon::ModelSpec& model_;
  const libmuon::StatePlan& plan_;
  const std::filesystem::path folder_;
  std::map<std::uint32_t, std::vector<float>> values_;
};

}  // namespace ebb::test
