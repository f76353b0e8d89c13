// expected.json of a fixture (its fields: tests/fixtures/README.md) against what a decoder says.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::test_support {

// The whole logical tensor, row-major, little-endian, as lower-case hex. Reads every chunk.
Result<std::string> sha256_of(const Checkpoint& checkpoint, const TensorEntry& tensor);

enum class Compare { tensors, tensors_and_values };

// Empty when name, state, dtype, shape and sha256 of all tensors (and the values) agree; otherwise
// one line per difference.
std::string differences(const Checkpoint& checkpoint, const std::filesystem::path& expected_json,
                        Compare compare);

// Values of expected.json that the catalog lacks or holds differently; it may hold more. `but_not`:
// keys that are no part of a checkpoint. One line per difference.
std::string value_differences(const Catalog& catalog, const std::filesystem::path& expected_json,
                              std::span<const std::string_view> but_not);

// The same for what `ckpt-inspect --tensors --digest --json` printed.
std::string content_differences(const std::string& json, const std::filesystem::path& expected_json,
                                Compare compare);

// The "error" of an expected.json, "" when it has none.
std::string expected_error(const std::filesystem::path& expected_json);

}  // namespace ebb::test_support
