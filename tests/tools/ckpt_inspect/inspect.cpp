#include "tests/tools/ckpt_inspect/inspect.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace ebb::inspect_test {

void write_safetensors(const std::string& path, const std::string& dtype, const std::string& shape,
                       const std::string& bytes, const std::string& name) {
  const std::string header = "{\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
                             ",\"data_offsets\":[0," + std::to_string(bytes.size()) + "]}}";
  const auto length = static_cast<std::uint64_t>(header.size());
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file << header << bytes;
}

void write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

void copy(const std::string& fixture, const std::string& to) {
  namespace fs = std::filesystem;
  fs::create_directories(fs::path(to).parent_path());
  fs::copy(fs::path(EBB_FIXTURES) / fixture, to, fs::copy_options::recursive);
}

void replace(const std::string& path, std::string_view text, std::string_view by) {
  std::string whole = test_support::text_of_file(path);
  const std::size_t at = whole.find(text);
  EXPECT_NE(at, std::string::npos) << path;
  if (at != std::string::npos) whole.replace(at, text.size(), by);
  std::filesystem::remove(path);  // a fixture's copy may not be writable
  write(path, whole);
}

}  // namespace ebb::inspect_test
