#include "ebb/formats/hdf5/meaning.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "ebb/formats/catalog/value_json.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/hdf5/naming.h"

namespace ebb::formats::hdf5 {
namespace {

constexpr std::array<std::string_view, 3> kOfTheFile = {"format", "format_version", "generator"};
constexpr std::array<std::string_view, 7> kOfADataset = {"global_shape", "offset", "dtype", "rank",
                                                         "zero_stage",   "name",   "state"};

bool is_one_of(std::string_view name, std::span<const std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

const Value* find(const std::vector<Attribute>& attributes, std::string_view name) {
  const auto found = std::ranges::find(attributes, name, &Attribute::name);
  return found == attributes.end() ? nullptr : &found->value;
}

std::optional<Shape> wholes(const Value& value) {
  if (value.kind != Value::Kind::list) return std::nullopt;
  Shape out;
  for (const Value& item : value.items) {
    if (item.kind != Value::Kind::integer || item.integer < 0) return std::nullopt;
    out.push_back(static_cast<std::uint64_t>(item.integer));
  }
  return out;
}

class Convention {
 public:
  Convention(const File& file, const Dataset& dataset) : file_(file), dataset_(dataset) {}

  Result<> read(Meaning& meaning, DType stored) const {
    EBB_TRY(numbers("global_shape", meaning.global_shape));
    EBB_TRY(numbers("offset", meaning.offset));
    if (!inside(Box{meaning.offset, dataset_.shape}, meaning.global_shape))
      return bad(compose("its shape {} at offset {} is not inside its global_shape {}",
                         to_string(dataset_.shape), to_string(meaning.offset),
                         to_string(meaning.global_shape)));
    const auto elems = checked_volume(meaning.global_shape);
    if (!elems || !checked_mul(*elems, bytes_of(stored)))
      return bad("its global_shape " + to_string(meaning.global_shape) +
                 " needs more bytes than 64 bits count");
    EBB_TRY(text("name", meaning.name));
    EBB_TRY(text("state", meaning.state));
    std::string dtype(name_of(stored));
    EBB_TRY(text("dtype", dtype));
    const std::optional<DType> stated = dtype_named(dtype);
    // What HDF5 has no type for is kept in bytes, and only the attribute says what they are.
    const bool bytes_only = stated == DType::f8_e8m0 && stored == DType::u8;
    if (stated != stored && !bytes_only)
      return bad(compose("its attribute dtype says {}, its type is {}", printable(dtype),
                         name_of(stored)));
    meaning.dtype = *stated;
    if (const Value* rank = find(dataset_.attributes, "rank")) {
      if (rank->kind != Value::Kind::integer || rank->integer < 0 || rank->integer > kMaxRank)
        return bad("its attribute rank is " + to_json(*rank));
      meaning.rank = static_cast<std::uint32_t>(rank->integer);
    }
    return {};
  }

 private:
  static constexpr std::int64_t kMaxRank = 1 << 20;

  Error bad(const std::string& why) const {
    return {Code::corrupt, compose("{}: {}: {}", file_.shown(), printable(dataset_.path), why)};
  }
  Result<> numbers(std::string_view name, Shape& into) const {
    const Value* value = find(dataset_.attributes, name);
    if (value == nullptr) return {};
    const auto list = wholes(*value);
    if (!list) return bad(compose("its attribute {} is no list of whole numbers", name));
    into = *list;
    return {};
  }
  Result<> text(std::string_view name, std::string& into) const {
    const Value* value = find(dataset_.attributes, name);
    if (value == nullptr) return {};
    if (value->kind != Value::Kind::string)
      return bad(compose("its attribute {} is no text", name));
    into = value->text;
    return {};
  }

  const File& file_;
  const Dataset& dataset_;
};

class Values {
 public:
  explicit Values(Catalog& catalog) : catalog_(catalog) {}

  Result<> add(const File& file) {
    const bool ours = follows_convention(file);
    for (const Group& group : file.description.groups)
      for (const Attribute& attribute : group.attributes)
        EBB_TRY(add_of_group(file, group.path, attribute, ours));
    for (const Dataset& dataset : file.description.datasets) {
      if (dataset.text)
        add(file, {dataset.path, {}, *dataset.text});
      else if (!dataset.has_space)
        add(file, {dataset.path, {}, Value{}});
      for (const Attribute& attribute : dataset.attributes)
        if (!ours || !is_one_of(attribute.name, kOfADataset))
          add(file, placed(dataset.path, attribute));
    }
    return {};
  }

 private:
  // On what an attribute hangs is its path; the root's are called by their name alone.
  static ValueEntry placed(const std::string& object, const Attribute& attribute) {
    return {object + "@" + attribute.name, {"@", object, attribute.name}, attribute.value};
  }

  void add(const File& file, ValueEntry entry) {
    const auto [known, fresh] = number_of_.emplace(entry.key, catalog_.values.size());
    if (fresh) return catalog_.values.push_back(std::move(entry));
    // Rank files repeat what all ranks share; what differs is each file's own.
    if (to_json(catalog_.values[known->second].value) == to_json(entry.value)) return;
    entry.key = file.name + ":" + entry.key;
    entry.path.clear();
    catalog_.values.push_back(std::move(entry));
  }

  Result<> add_of_group(const File& file, const std::string& group, const Attribute& attribute,
                        bool ours) {
    if (group != "/") {
      add(file, placed(group, attribute));
      return {};
    }
    const std::string where =
        compose("{}: attribute '{}'", file.shown(), printable(attribute.name));
    if (attribute.name == "step" && attribute.value.kind == Value::Kind::integer)
      EBB_TRY(take_step(where, attribute.value.integer));
    if (!ours) {
      add(file, {attribute.name, {}, attribute.value, attribute.name == "step"});
      return {};
    }
    if (attribute.name == "generator") catalog_.producer = attribute.value.text;
    if (is_one_of(attribute.name, kOfTheFile)) return {};
    if (attribute.name == kValuesAttribute) {
      EBB_TRY_ASSIGN(std::vector<ValueEntry> values, read_values_json(attribute.value.text, where));
      for (ValueEntry& entry : values) add(file, std::move(entry));
    } else if (attribute.name == kGroupsAttribute) {
      EBB_TRY_ASSIGN(catalog_.groups, read_groups_json(attribute.value.text, where));
    } else if (attribute.name == kParamStepsAttribute) {
      EBB_TRY_ASSIGN(catalog_.param_steps, read_param_steps_json(attribute.value.text, where));
    } else {
      add(file, {attribute.name, {}, attribute.value, attribute.name == "step"});
    }
    return {};
  }

  Result<> take_step(const std::string& where, std::int64_t step) {
    if (catalog_.step && *catalog_.step != step)
      return Error{Code::corrupt, compose("{} is {}, in another file {}: two saves are mixed",
                                          where, step, *catalog_.step)};
    catalog_.step = step;
    return {};
  }

  Catalog& catalog_;
  std::unordered_map<std::string, std::size_t> number_of_;  // by key, in Catalog::values
};

}  // namespace

bool follows_convention(const File& file) {
  const auto& groups = file.description.groups;
  const auto root = std::ranges::find(groups, "/", &Group::path);
  const Value* format = root == groups.end() ? nullptr : find(root->attributes, "format");
  return format != nullptr && format->kind == Value::Kind::string && format->text == kFormatMark;
}

Result<Meaning> meaning_of(const File& file, const Dataset& dataset, const std::string& path,
                           DType stored) {
  Meaning meaning{.dtype = stored, .global_shape = dataset.shape};
  meaning.offset.assign(dataset.shape.size(), 0);
  std::tie(meaning.name, meaning.state) = identity_of(path);
  if (follows_convention(file)) EBB_TRY(Convention(file, dataset).read(meaning, stored));
  return meaning;
}

std::optional<std::uint32_t> rank_of(const File& file, const Dataset& dataset) {
  const Value* rank = find(dataset.attributes, "rank");
  if (!follows_convention(file) || rank == nullptr || rank->kind != Value::Kind::integer)
    return std::nullopt;
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(rank->integer, 0, ~0u));
}

Result<> read_values(const FileSet& files, Catalog& catalog) {
  Values values(catalog);
  for (const File& file : files.files()) EBB_TRY(values.add(file));
  return {};
}

}  // namespace ebb::formats::hdf5
