// Megatron's fixtures, and their values in the spelling of expected.json.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::megatron_test {

// Cases of tests/fixtures/megatron that start with `prefix`; all without one.
std::vector<std::string> cases(std::string_view prefix = "");
std::filesystem::path case_folder(const std::string& name);

// Describes the data of a case through the registry.
Result<std::unique_ptr<Checkpoint>> describe_case(const std::string& name);

// "" when iteration, folder, common state and sharded objects are those of expected.json; else one
// line per difference.
std::string value_differences(const Catalog& catalog, const std::filesystem::path& expected_json);

}  // namespace ebb::megatron_test
