#include "ebb/formats/conversion/dequantize.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>
#include <string_view>

#include "ebb/formats/catalog/composite.h"
#include "ebb/formats/catalog/with_catalog.h"
#include "ebb/formats/conversion/composites.h"
#include "ebb/formats/core/check.h"
#include "ebb/formats/core/element_values.h"
#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/elements/box_reader.h"

namespace ebb::formats {
namespace {

constexpr std::uint64_t kMadeAtOnce = 64 * KiB;
constexpr std::uint64_t kMostInTable = 256;

// How a class says its elements: (table[code] or code, less zero) times scale.
struct Recipe {
  enum class Scale : std::uint8_t {
    of_rows,   // one for so many elements in a row
    of_boxes,  // one for a box, in as many dimensions as the tensor has
    of_codes,  // as of_rows, and the scales are quantized themselves (QLoRA)
  };
  std::string_view type;
  // fp4: of two bits of exponent and one of mantissa, the lower half of a byte first; else the
  // upper.
  enum class Codes : std::uint8_t { as_they_are, fp4 };
  std::string_view codes, table, zero;  // parts; "": it has none
  std::uint32_t per_byte = 1;           // codes
  Scale scale = Scale::of_rows;
  Codes coding = Codes::as_they_are;
  std::optional<DType> out = std::nullopt;  // unset: what the tensor stands for
};
constexpr std::array kRecipes{
    Recipe{.type = "OptimState8bit", .codes = "codes", .table = "qmap", .out = DType::f32},
    Recipe{.type = "OptimState4bit",
           .codes = "codes",
           .table = "qmap",
           .per_byte = 2,
           .out = DType::f32},
    Recipe{.type = "OptimStateFp8", .codes = "codes", .out = DType::f32},
    Recipe{.type = "Float8Tensor", .codes = "qdata", .scale = Recipe::Scale::of_boxes},
    Recipe{.type = "MXTensor", .codes = "qdata", .scale = Recipe::Scale::of_boxes},
    Recipe{.type = "MXTensor",
           .codes = "qdata",
           .per_byte = 2,
           .scale = Recipe::Scale::of_boxes,
           .coding = Recipe::Codes::fp4},
    Recipe{.type = "NVFP4Tensor",
           .codes = "qdata",
           .per_byte = 2,
           .scale = Recipe::Scale::of_boxes,
           .coding = Recipe::Codes::fp4},
    Recipe{.type = "Int8Tensor",
           .codes = "qdata",
           .zero = "zero_point",
           .scale = Recipe::Scale::of_boxes},
    Recipe{.type = "IntxUnpackedToInt8Tensor",
           .codes = "qdata",
           .zero = "zero_point",
           .scale = Recipe::Scale::of_boxes},
    Recipe{.type = "NF4Tensor",
           .codes = "quantized_data",
           .table = "nf4",
           .per_byte = 2,
           .scale = Recipe::Scale::of_codes},
};

using Floats = std::vector<float>;

constexpr std::array<float, 16> kFp4 = {0.f,  0.5f,  1.f,  1.5f,  2.f,  3.f,  4.f,  6.f,
                                        -0.f, -0.5f, -1.f, -1.5f, -2.f, -3.f, -4.f, -6.f};
constexpr std::string_view kScaleOfAll = "per_tensor_scale";  // NVFP4's

void round_to(DType dtype, Floats& values) {
  if (dtype == DType::f32) return;
  ByteVector narrow(values.size() * bytes_of(dtype));
  const auto wide = std::as_writable_bytes(std::span(values));
  cast_floats(DType::f32, wide, dtype, narrow);
  cast_floats(dtype, narrow, DType::f32, wide);
}

// Of a dtype of one byte.
Floats values_of_bytes(DType dtype) {
  ByteVector bytes(256);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  std::vector<double> values(bytes.size());
  element_values(dtype, bytes, values);
  return Floats(values.begin(), values.end());
}

std::uint64_t setting_of(const Composite& whole, std::string_view name) {
  const auto found = std::ranges::find(whole.settings, name, &std::pair<std::string, Value>::first);
  const bool number = found != whole.settings.end() && found->second.kind == Value::Kind::integer;
  return number && found->second.integer > 0 ? static_cast<std::uint64_t>(found->second.integer)
                                             : 0;
}

bool says(const Composite& whole, std::string_view name) {
  const auto found = std::ranges::find(whole.settings, name, &std::pair<std::string, Value>::first);
  return found != whole.settings.end() && found->second.kind == Value::Kind::boolean &&
         found->second.integer != 0;
}

// One tensor that is made anew.
class Plain {
 public:
  using Parts = std::map<std::string_view, const TensorEntry*>;

  // nullopt: nothing tells how, or its parts do not fit each other.
  static std::optional<Plain> of(const Composite& whole, const Parts& parts) {
    const std::string_view type = whole.type;
    if (!type.starts_with("torchao.")) return std::nullopt;
    for (const Recipe& recipe : kRecipes) {
      if (recipe.type != type.substr(type.rfind('.') + 1)) continue;
      if (Plain plain(recipe, whole, parts); plain.fits()) return plain;
    }
    return std::nullopt;
  }

  DType dtype() const { return recipe_->out.value_or(whole_->dtype); }

  // Elements [first, first + count) of the row.
  Result<Floats> read(const Checkpoint& stored, std::uint64_t first, std::uint64_t count) const {
    EBB_TRY_ASSIGN(Floats values, codes(stored, first, count));
    EBB_TRY_ASSIGN(const Floats scales, recipe_->scale == Recipe::Scale::of_boxes
                                            ? of_boxes(stored, "scale", first, count)
                                            : of_rows(stored, first, count));
    if (part(recipe_->zero) != nullptr) {
      EBB_TRY_ASSIGN(const Floats zeros, of_boxes(stored, recipe_->zero, first, count));
      for (std::uint64_t i = 0; i < count; ++i) values[i] -= zeros[i];
    }
    for (std::uint64_t i = 0; i < count; ++i) values[i] *= scales[i];
    return values;
  }

 private:
  Plain(const Recipe& recipe, const Composite& whole, Parts parts)
      : recipe_(&recipe), whole_(&whole), parts_(std::move(parts)) {}

  const TensorEntry* part(std::string_view name) const {
    const auto found = parts_.find(name);
    return found == parts_.end() ? nullptr : found->second;
  }

  bool fits() const {
    const TensorEntry* codes = part(recipe_->codes);
    const TensorEntry* table = part(recipe_->table);
    const auto readable = [](const auto& entry) {
      return values_per_element(entry.second->dtype) == 1;
    };
    const std::uint64_t elems = volume(whole_->shape);
    const bool in_bytes = recipe_->per_byte == 1 || (codes && codes->dtype == DType::u8);
    if (codes == nullptr || elems == 0 || !in_bytes || !is_floating(dtype()) ||
        !std::ranges::all_of(parts_, readable) || says(*whole_, "is_swizzled_scales") ||
        volume(codes->shape) * recipe_->per_byte != elems)
      return false;
    if (!recipe_->table.empty() &&
        (table == nullptr || codes->dtype != DType::u8 ||
         volume(table->shape) != (recipe_->per_byte == 1 ? kMostInTable : 16)))
      return false;
    switch (recipe_->scale) {
      case Recipe::Scale::of_rows:
        return part("scale") != nullptr && divides(volume(part("scale")->shape), elems);
      case Recipe::Scale::of_boxes:
        return codes->shape == stored_shape() && cuts("scale") &&
               (part(kScaleOfAll) == nullptr || volume(part(kScaleOfAll)->shape) == 1) &&
               (part(recipe_->zero) == nullptr || cuts(recipe_->zero));
      case Recipe::Scale::of_codes:
        return scales_fit(elems);
    }
    return false;
  }

  // Of the codes: bytes of two lie along the last dimension.
  Shape stored_shape() const {
    Shape shape = whole_->shape;
    if (!shape.empty()) shape.back() /= recipe_->per_byte;
    return shape;
  }

  static bool divides(std::uint64_t part, std::uint64_t all) { return part > 0 && all % part == 0; }

  bool cuts(std::string_view name) const {
    const TensorEntry* scale = part(name);
    return scale != nullptr && scale->shape.size() == whole_->shape.size() &&
           std::ranges::equal(scale->shape, whole_->shape, divides);
  }

  bool scales_fit(std::uint64_t elems) const {
    const TensorEntry* scalers = part("quantized_scalers");
    const TensorEntry* factors = part("quantization_factor");
    const TensorEntry* mean = part("scaler_mean");
    const std::uint64_t block = setting_of(*whole_, "block_size");
    const std::uint64_t of_scalers = setting_of(*whole_, "scaler_block_size");
    return scalers != nullptr && factors != nullptr && mean != nullptr && block > 0 &&
           of_scalers > 0 && volume(mean->shape) == 1 &&
           checked_mul(volume(scalers->shape), block) == elems &&
           checked_mul(volume(factors->shape), of_scalers) == volume(scalers->shape);
  }

  static Result<Floats> flat(const Checkpoint& stored, const TensorEntry& part, std::uint64_t first,
                             std::uint64_t count) {
    ByteVector bytes(count * bytes_of(part.dtype));
    std::uint64_t done = 0;
    for (const Box& box : boxes_of(part.shape, {first, count})) {
      const std::uint64_t size = volume(box.extent) * bytes_of(part.dtype);
      EBB_TRY(read_box(stored, part, box, std::span(bytes).subspan(done, size)));
      done += size;
    }
    if (bytes_of(part.dtype) == 1) {
      const Floats table = values_of_bytes(part.dtype);
      Floats values(count);
      std::ranges::transform(bytes, values.begin(), [&](std::byte byte) {
        return table[std::to_integer<std::size_t>(byte)];
      });
      return values;
    }
    std::vector<double> values(count);
    element_values(part.dtype, bytes, values);
    return Floats(values.begin(), values.end());
  }
  static Result<Floats> all_of(const Checkpoint& stored, const TensorEntry& part) {
    return flat(stored, part, 0, volume(part.shape));
  }

  Result<Floats> codes(const Checkpoint& stored, std::uint64_t first, std::uint64_t count) const {
    const std::uint64_t per_byte = recipe_->per_byte;
    const std::uint64_t begin = first / per_byte;
    const std::uint64_t bytes = div_ceil(first + count, per_byte) - begin;
    EBB_TRY_ASSIGN(Floats stored_codes, flat(stored, *part(recipe_->codes), begin, bytes));
    const bool fp4 = recipe_->coding == Recipe::Codes::fp4;
    if (recipe_->table.empty() && !fp4) return stored_codes;
    Floats table(kFp4.begin(), kFp4.end());
    if (!fp4) {
      EBB_TRY_ASSIGN(table, all_of(stored, *part(recipe_->table)));
    }
    Floats values(count);
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto code = static_cast<std::uint32_t>(stored_codes[(first + i) / per_byte - begin]);
      const bool upper = ((first + i) % 2 == 0) != fp4;
      values[i] = table[per_byte == 1 ? code : upper ? code >> 4u : code & 15u];
    }
    return values;
  }

  // The elements of a part at these places, of which none lies far from the others.
  static Result<Floats> at(const Checkpoint& stored, const TensorEntry& part,
                           const std::vector<std::uint64_t>& places) {
    const auto [least, most] = std::ranges::minmax(places);
    EBB_TRY_ASSIGN(const Floats values, flat(stored, part, least, most - least + 1));
    Floats out(places.size());
    for (std::size_t i = 0; i < places.size(); ++i) out[i] = values[places[i] - least];
    return out;
  }

  Result<Floats> of_rows(const Checkpoint& stored, std::uint64_t first, std::uint64_t count) const {
    const bool quantized = recipe_->scale == Recipe::Scale::of_codes;
    const TensorEntry& scale = *part(quantized ? "quantized_scalers" : "scale");
    const std::uint64_t block = volume(whole_->shape) / volume(scale.shape);
    std::vector<std::uint64_t> places(count);
    for (std::uint64_t i = 0; i < count; ++i) places[i] = (first + i) / block;
    EBB_TRY_ASSIGN(Floats scales, at(stored, scale, places));
    if (quantized) EBB_TRY(dequantize_scales(stored, std::move(places), scales));
    return scales;
  }

  // In the weight's dtype, as torchao computes them.
  Result<> dequantize_scales(const Checkpoint& stored, std::vector<std::uint64_t> places,
                             Floats& scales) const {
    const std::uint64_t of_scalers = setting_of(*whole_, "scaler_block_size");
    for (std::uint64_t& place : places) place /= of_scalers;
    EBB_TRY_ASSIGN(const Floats factors, at(stored, *part("quantization_factor"), places));
    EBB_TRY_ASSIGN(const Floats mean, all_of(stored, *part("scaler_mean")));
    for (std::size_t i = 0; i < scales.size(); ++i) scales[i] /= factors[i];
    round_to(whole_->dtype, scales);
    for (float& scale : scales) scale += mean.front();
    round_to(whole_->dtype, scales);
    return {};
  }

  // A part that has one element for a box of the whole's.
  Result<Floats> of_boxes(const Checkpoint& stored, std::string_view name, std::uint64_t first,
                          std::uint64_t count) const {
    const Shape& cut = part(name)->shape;
    std::vector<std::uint64_t> places(count);
    const std::uint64_t width = cut.empty() ? 1 : whole_->shape.back() / cut.back();
    for (std::uint64_t i = 0; i < count;) {
      std::uint64_t rest = first + i, step = 1, place = 0;
      for (std::size_t d = cut.size(); d-- > 0;) {
        place += rest % whole_->shape[d] / (whole_->shape[d] / cut[d]) * step;
        rest /= whole_->shape[d];
        step *= cut[d];
      }
      // Along the last dimension it is the same to the end of the box.
      const std::uint64_t run = std::min(width - (first + i) % width, count - i);
      std::fill_n(places.begin() + static_cast<std::ptrdiff_t>(i), run, place);
      i += run;
    }
    EBB_TRY_ASSIGN(Floats values, at(stored, *part(name), places));
    if (name != "scale" || part(kScaleOfAll) == nullptr) return values;
    EBB_TRY_ASSIGN(const Floats of_all, all_of(stored, *part(kScaleOfAll)));
    for (float& value : values) value *= of_all.front();
    return values;
  }

  const Recipe* recipe_;
  const Composite* whole_;
  Parts parts_;
};

class DequantizedCheckpoint : public Checkpoint {
 public:
  explicit DequantizedCheckpoint(std::unique_ptr<Checkpoint> stored) : stored_(std::move(stored)) {
    const Catalog& from = stored_->catalog();
    catalog_ = from;
    catalog_.tensors.clear();
    std::map<const Composite*, Plain::Parts> wholes;
    for (const TensorEntry& tensor : from.tensors)
      if (tensor.part_of) wholes[tensor.part_of->whole.get()][tensor.part_of->part] = &tensor;
    std::map<const Composite*, bool> done;
    for (std::size_t i = 0; i < from.tensors.size(); ++i) {
      const TensorEntry& tensor = from.tensors[i];
      const Composite* whole = tensor.part_of ? tensor.part_of->whole.get() : nullptr;
      if (whole != nullptr && !done.contains(whole))
        done.emplace(whole, add_plain(tensor, Plain::of(*whole, wholes.at(whole))));
      if (whole != nullptr && done.at(whole)) continue;
      catalog_.tensors.push_back(tensor);
      made_of_.push_back({i, std::nullopt});
    }
  }

  const Catalog& catalog() const override { return catalog_; }

  std::vector<std::string> changes() const {
    std::map<std::pair<std::string_view, DType>, std::size_t> counts;
    for (std::size_t i = 0; i < made_of_.size(); ++i)
      if (made_of_[i].plain)
        ++counts[{stored_->catalog().tensors[made_of_[i].from].part_of->whole->type,
                  catalog_.tensors[i].dtype}];
    std::vector<std::string> lines;
    for (const auto& [what, count] : counts)
      lines.push_back(compose("dequantizes {} of {} to {}", plural(count, "tensor"),
                              class_text(what.first), name_of(what.second)));
    return lines;
  }

 private:
  struct MadeOf {
    std::size_t from = 0;  // in the stored catalog; of a plain one its first part
    std::optional<Plain> plain;
  };

  bool add_plain(const TensorEntry& part, std::optional<Plain> plain) {
    if (!plain) return false;
    TensorEntry tensor = whole_of(part);
    tensor.part_of.reset();
    tensor.dtype = plain->dtype();
    Chunk chunk{.box = whole(tensor.shape),
                .length = volume(tensor.shape) * bytes_of(tensor.dtype)};
    if (!part.chunks.empty()) chunk.file = part.chunks.front().file;
    tensor.chunks = {std::move(chunk)};
    catalog_.tensors.push_back(std::move(tensor));
    const auto from = static_cast<std::size_t>(&part - stored_->catalog().tensors.data());
    made_of_.push_back({from, std::move(plain)});
    return true;
  }

  // REQUIRES: `tensor` is one of catalog()'s; whole elements of what is made.
  Result<> read_chunk(const TensorEntry& tensor, const Chunk& chunk, std::uint64_t first,
                      std::span<std::byte> into) const override {
    const auto number = static_cast<std::size_t>(&tensor - catalog_.tensors.data());
    EBB_CHECK(number < made_of_.size());
    const auto& [from, plain] = made_of_[number];
    if (!plain) return stored_->read(stored_->catalog().tensors[from], chunk, first, into);
    const std::uint64_t width = bytes_of(tensor.dtype);
    EBB_CHECK(first % width == 0 && into.size() % width == 0);
    for (std::uint64_t done = 0; done < into.size();) {
      const std::uint64_t count = std::min(kMadeAtOnce, (into.size() - done) / width);
      EBB_TRY_ASSIGN(const Floats values, plain->read(*stored_, (first + done) / width, count));
      cast_floats(DType::f32, std::as_bytes(std::span(values)), tensor.dtype,
                  into.subspan(done, count * width));
      done += count * width;
    }
    return {};
  }

  std::unique_ptr<Checkpoint> stored_;
  Catalog catalog_;
  std::vector<MadeOf> made_of_;
};

}  // namespace

Result<Dequantized> dequantized(std::unique_ptr<Checkpoint> stored) {
  Catalog catalog = stored->catalog();
  take_composites(catalog);
  stored = with_catalog(std::move(stored), std::move(catalog));
  auto made = std::make_unique<DequantizedCheckpoint>(std::move(stored));
  std::vector<std::string> changes = made->changes();
  if (changes.empty())
    return Error{Code::usage, "there is no tensor to dequantize whose class has a known formula",
                 "ckpt-inspect CKPT says which classes its tensors have"};
  return Dequantized{std::move(made), std::move(changes)};
}

}  // namespace ebb::formats
