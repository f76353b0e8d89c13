// HDF5 as far as this program reads it itself: what the confined reader reports, the superblock,
// the documents in attributes, the elements. libhdf5 runs in a process of its own and is fuzzed
// elsewhere.
#include "ebb/formats/catalog/value_json.h"
#include "ebb/formats/hdf5/description.h"
#include "ebb/formats/hdf5/superblock.h"
#include "tests/fuzz/inputs.h"
#include "tests/fuzz/targets.h"

namespace ebb::fuzz {
namespace {

namespace hdf5 = formats::hdf5;

constexpr std::uint64_t kFileBytes = 4096;

// One file, and one report whatever is asked.
class ReportTree : public test_support::MemoryTree {
 public:
  explicit ReportTree(ByteView report) : MemoryTree("t"), report_(report.begin(), report.end()) {}
  Result<ByteVector> probe(std::string_view, const formats::ByteSource&) const override {
    return report_;
  }

 private:
  ByteVector report_;
};

}  // namespace

void hdf5_report(ByteView input) {
  if (const auto report = hdf5::decode(input)) EBB_CHECK(hdf5::decode(encode(*report)).has_value());
  auto tree = std::make_shared<ReportTree>(input);
  ByteVector file;
  formats::append_text(file, std::string_view("\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08\0", 16));
  file.resize(24);
  formats::append_le<std::uint64_t>(file, 0);
  formats::append_le<std::uint64_t>(file, ~std::uint64_t{0});
  formats::append_le<std::uint64_t>(file, kFileBytes);
  file.resize(kFileBytes);
  tree->add("state.h5", std::move(file));
  look_at(std::move(tree));
}

void hdf5_superblock(ByteView input) {
  const formats::MemorySource source("m", ByteVector(input.begin(), input.end()));
  (void)hdf5::read_superblock(source);
}

void hdf5_values(ByteView input) {
  const std::string_view text = formats::text_of(input);
  if (const auto values = formats::read_values_json(text, "m")) {
    const std::string written = formats::values_json(*values);
    const auto again = formats::read_values_json(written, "m");
    EBB_CHECK(again.has_value());
    EBB_CHECK(formats::values_json(*again) == written);
  }
  (void)formats::read_groups_json(text, "m");
  (void)formats::read_param_steps_json(text, "m");
}

}  // namespace ebb::fuzz
