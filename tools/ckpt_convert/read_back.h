// The proof that what was written is what was to be written, taken from the files alone.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "ebb/formats/conversion/convert.h"
#include "tools/cli/console.h"
#include "tools/cli/watched_checkpoint.h"

namespace ebb::tools::convert {

class ReadBack {
 public:
  // Borrows the conversion. Workers that read, 0: two for each core.
  ReadBack(const formats::Conversion& conversion, std::uint32_t workers);

  // Describes the finished files and compares everything that the plan does not drop with the
  // content: tensors by fingerprint, values, groups, the step and the steps of parameters as they
  // are. Errors name the tensor or key: corrupt, unsupported where the target has no name for it,
  // cancelled, and those of reading. The console shows how far it is.
  Result<> run(Console& console, const std::filesystem::path& directory,
               std::span<const std::uint64_t> fingerprints) const;

  // Derived tensors of the plan whose source rounds to other values, one line each. Reads both.
  Result<std::vector<std::string>> rounded_otherwise() const;

 private:
  // By name. A format without a word for a state stores it under another one: master weights as
  // the parameters, for example.
  using ByName = std::multimap<std::string_view, const TensorEntry*>;
  using Identity = std::tuple<std::string_view, std::string_view, DType>;

  Result<> compare_tensors(const WatchedCheckpoint& written,
                           std::span<const std::uint64_t> fingerprints) const;
  // The tensor of the same name, state, dtype and shape; nullptr: none.
  static const TensorEntry* exactly(const ByName& tensors, const TensorEntry& wanted);
  enum class Found : std::uint8_t { equal, other_bytes, nowhere };
  Result<Found> find(const Checkpoint& written, const ByName& tensors, const TensorEntry& wanted,
                     std::uint64_t fingerprint) const;
  static Identity identity(const TensorEntry& tensor);

  const formats::Conversion& conversion_;
  std::uint32_t workers_;
  std::set<Identity> claimed_;  // by tensors of the content
};

}  // namespace ebb::tools::convert
