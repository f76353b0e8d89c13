// --stats --picture: norms by layer and state.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "ebb/formats/elements/statistics.h"
#include "tools/ckpt_inspect/modes.h"
#include "tools/pictures/layers.h"

namespace ebb::tools::inspect {

// As an object, the same in --json and in the picture; null for dtypes that have none.
void write_numbers(JsonWriter& json, const std::optional<formats::Statistics>& found);

class NormsPicture {
 public:
  static constexpr std::string_view kFlag = "--picture";

  explicit NormsPicture(const View& view);
  // Reads a tensor once more, layer by layer, where it holds several.
  Result<> add(const TensorEntry& tensor, const std::optional<formats::Statistics>& found);
  // Answers how large the page is.
  Result<std::uint64_t> write(const std::string& file);

 private:
  void put(const TensorEntry& tensor, std::int64_t layer,
           const std::optional<formats::Statistics>& found);
  std::string headline() const;

  const View& view_;
  pictures::Layers layers_;
  JsonWriter tensors_;
  std::uint64_t tensors_seen_ = 0, unsound_ = 0;
  double largest_ = -1;
  std::string largest_name_;
};

}  // namespace ebb::tools::inspect
