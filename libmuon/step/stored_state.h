// What of a model's state a store or checkpoint holds, and tiles filled from it. Since it was
// written the model may have gained and lost parameters, and some may have another optimizer: what
// is there is taken, what is not begins anew, and each difference is told.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/conversion/content_view.h"
#include "ebb/formats/native/manifest.h"
#include "ebb/libmuon/plan/state_plan.h"
#include "ebb/libmuon/step/config.h"
#include "ebb/libmuon/step/start.h"
#include "ebb/libswap/read/load.h"

namespace ebb::libmuon {

// Of one parameter.
enum class Held : std::uint8_t {
  all,      // weights and its optimizer's state
  weights,  // not trained until now, or by another optimizer: that state begins at zero
  nothing,  // new: its weights are the caller's
};

struct StoredState {
  std::vector<Held> held;   // by parameter
  std::string differences;  // for people, by kind, dtypes too; "" where there are none
  std::string fresh, lost;  // of these: parameters that are new, and those that the model has not
};
// Code::incomplete names the first state that is missing of a parameter that was trained;
// Code::layout one of another shape, or a source that has no parameter of the model. Second moments
// of which the source has none at all begin at zero.
Result<StoredState> find_stored(const Catalog& catalog, const ModelSpec& model,
                                const StatePlan& plan);

// A catalog's tensors by parameter and state. Borrows it.
class TensorIndex {
 public:
  explicit TensorIndex(const Catalog& catalog);
  // Formats that keep no separate master weights hold the same numbers as parameters.
  const TensorEntry* find(std::string_view param, std::string_view state) const;

 private:
  std::map<std::pair<std::string_view, std::string_view>, const TensorEntry*> tensors_;
};

// A checkpoint's tensors as a model's states, in their dtypes. Borrows all of it.
class StateSource {
 public:
  // Where there is no `initial`, masters of what is new stay 0. REQUIRES: `held` is what
  // find_stored() answered.
  StateSource(const Checkpoint& checkpoint, const ModelSpec& model, const StatePlan& plan,
              std::span<const Held> held, const InitialWeights& initial);
  // REQUIRES: the tile is all zeros.
  Result<> fill(std::span<const formats::native::Segment> segments, std::span<std::byte> tile);

 private:
  std::uint32_t number_of(const TensorEntry& tensor) const;  // in the catalog
  Result<> load(const TensorEntry& tensor, FlatRange range, std::span<float> into);
  Result<> fill_blocks(const TensorEntry& tensor, const formats::native::Segment& codes,
                       const formats::native::Segment& scales, std::span<std::byte> tile);

  const Checkpoint& checkpoint_;
  const ModelSpec& model_;
  const StatePlan& plan_;
  const std::span<const Held> held_;
  const InitialWeights& initial_;
  const std::vector<std::string> names_ = state_names();
  const formats::ContentView content_;
  const TensorIndex index_;
  libswap::Loader loader_{content_};
};

// Fills a segment of masters, or of a half of them, with what `read` says they are.
// Code::unsupported names the parameter where halves would be of what is not finite.
using ReadMasters = std::function<Result<>(FlatRange range, std::span<float> into)>;
Result<> fill_masters(const std::string& param, const formats::native::Segment& segment,
                      std::span<std::byte> tile, const ReadMasters& read);
// Of a parameter that is new, of that name. Code::usage where they are not finite.
ReadMasters masters_from(const InitialWeights& initial, std::uint32_t param,
                         const std::string& name);

// A segment's elements in its tile. REQUIRES: fp32.
std::span<float> segment_floats(std::span<std::byte> tile, const formats::native::Segment& segment);

}  // namespace ebb::libmuon
