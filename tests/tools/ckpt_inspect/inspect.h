// Runs ckpt-inspect, and makes small files for it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/program.h"

namespace ebb::inspect_test {

inline test_support::Outcome inspect(const std::vector<std::string>& arguments) {
  return test_support::run_program("ckpt-inspect", arguments);
}

// Writes a file of one tensor whose elements are `bytes`.
void write_safetensors(const std::string& path, const std::string& dtype, const std::string& shape,
                       const std::string& bytes, const std::string& name = "w");

// Writes any file, and makes the folders that it lies in.
void write(const std::string& path, const std::string& text = "x");

// A fixture, by its path below the fixtures, with the folders that it is to lie in.
void copy(const std::string& fixture, const std::string& to);

// Puts a text into a file in another's place, once.
void replace(const std::string& path, std::string_view text, std::string_view by);

using test_support::says;

// The little-endian bytes of numbers.
template <typename Number>
std::string bytes_of(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

}  // namespace ebb::inspect_test
