#include "tests/formats/deepspeed/made_content.h"

#include <algorithm>
#include <set>

#include "ebb/formats/core/bytes.h"
#include "ebb/formats/core/float_cast.h"
#include "tests/support/emit_in_memory.h"

namespace ebb::test_support {

MadeContent::MadeContent(std::string format, DType model) : model_(model) {
  catalog_.format = std::move(format);
  catalog_.step = 7;
  catalog_.files.push_back({"made", 0, std::nullopt});
}

// Counts up in steps no smaller than half precision can tell apart at that size.
ByteVector MadeContent::fresh(DType dtype, const Shape& shape) {
  const std::uint64_t count = formats::volume(shape);
  ByteVector wide;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint32_t number = next_++;
    formats::append_le(wide, static_cast<float>(number) * 0.37F - 11.0F);
  }
  if (dtype == DType::f32) return wide;
  ByteVector out(count * formats::bytes_of(dtype));
  if (is_floating(dtype))
    formats::cast_floats(DType::f32, wide, dtype, out);
  else
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(i + next_);
  return out;
}

void MadeContent::add(const std::string& name, const std::string& state, DType dtype,
                      const Shape& shape, ByteVector bytes) {
  TensorEntry& tensor = catalog_.tensors.emplace_back();
  tensor.name = name;
  tensor.state = state;
  tensor.dtype = dtype;
  tensor.shape = shape;
  tensor.chunks.push_back({formats::whole(shape), 0, 0, bytes.size(), Rank{0},
                           static_cast<std::uint64_t>(bytes_.size())});
  bytes_.push_back(std::move(bytes));
}

void MadeContent::add_group(const std::string& optimizer, const std::vector<Param>& params,
                            double lr) {
  const bool muon = optimizer == "muon";
  GroupEntry& group = catalog_.groups.emplace_back();
  group.optimizer = optimizer;
  group.settings.emplace_back("lr", Value::of_real(lr));
  if (muon) group.settings.emplace_back("momentum", Value::of_real(0.95));
  for (const Param& param : params) {
    group.params.push_back(param.name);
    ByteVector master = fresh(DType::f32, param.shape);
    ByteVector own(master.size() / 4 * bytes_of(model_));
    if (model_ == DType::f32)
      own = master;
    else
      formats::cast_floats(DType::f32, master, model_, own);
    add(param.name, "param", model_, param.shape, std::move(own));
    add(param.name, "master", DType::f32, param.shape, std::move(master));
    if (muon) {
      add(param.name, "momentum_buffer", model_, param.shape, fresh(model_, param.shape));
      continue;
    }
    for (const char* state : {"exp_avg", "exp_avg_sq"})
      add(param.name, state, DType::f32, param.shape, fresh(DType::f32, param.shape));
    catalog_.param_steps[param.name] = 7;
  }
}

void MadeContent::add_frozen(const std::string& name, const Shape& shape) {
  add(name, "param", model_, shape, fresh(model_, shape));
}

void MadeContent::add_buffer(const std::string& name, DType dtype, const Shape& shape) {
  add(name, "buffer", dtype, shape, fresh(dtype, shape));
}

void MadeContent::add_value(const std::string& key, Value value) {
  catalog_.values.push_back({key, {key}, std::move(value)});
}

Result<> MadeContent::read_chunk(const TensorEntry&, const Chunk& chunk, std::uint64_t first,
                                 std::span<std::byte> into) const {
  const ByteVector& bytes = bytes_[chunk.tag];
  EBB_CHECK(first + into.size() <= bytes.size());
  std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(first), into.size(), into.begin());
  return {};
}

namespace {

const TensorEntry* find(const Catalog& catalog, const std::string& name, const std::string& state) {
  for (const TensorEntry& tensor : catalog.tensors)
    if (tensor.name == name && tensor.state == state) return &tensor;
  return nullptr;
}

// The elements that `again` has for a tensor, "" in `why` when it has them.
ByteVector found_elements(const Checkpoint& again, const TensorEntry& wanted, std::string& why) {
  const TensorEntry* found = find(again.catalog(), wanted.name, wanted.state);
  const bool from_master = found == nullptr && wanted.state == "param";
  if (from_master) found = find(again.catalog(), wanted.name, "master");
  if (found == nullptr || found->shape != wanted.shape) {
    why = "missing or of another shape";
    return {};
  }
  auto bytes = elements_of(again, *found);
  if (!bytes) {
    why = bytes.error().message;
    return {};
  }
  if (found->dtype == wanted.dtype) return std::move(*bytes);
  if (!from_master) why = "of another dtype, " + std::string(name_of(found->dtype));
  ByteVector cast(formats::volume(wanted.shape) * bytes_of(wanted.dtype));
  if (from_master) formats::cast_floats(found->dtype, *bytes, wanted.dtype, cast);
  return cast;
}

std::string settings_text(const GroupEntry& group) {
  std::string out = group.optimizer;
  for (const auto& [name, value] : group.settings) out += " " + name + "=" + to_json(value);
  return out;
}

std::string group_differences(const Catalog& content, const Catalog& again) {
  std::string out;
  const GroupEntry* last = nullptr;
  for (const GroupEntry& wanted : content.groups) {
    const std::set<std::string> names(wanted.params.begin(), wanted.params.end());
    bool found = false;
    for (const GroupEntry& group : again.groups) {
      if (std::set<std::string>(group.params.begin(), group.params.end()) != names) continue;
      if (last != nullptr && &group < last) out += "groups in another order\n";
      last = &group;
      found = group.optimizer == wanted.optimizer;
      for (const auto& setting : wanted.settings)
        found =
            found && std::ranges::any_of(group.settings, [&](const auto& have) {
              return have.first == setting.first && to_json(have.second) == to_json(setting.second);
            });
    }
    if (!found) out += "group " + settings_text(wanted) + ": missing or different\n";
  }
  return out;
}

}  // namespace

std::string content_differences(const Checkpoint& content, const Checkpoint& again) {
  std::string out;
  for (const TensorEntry& tensor : content.catalog().tensors) {
    std::string why;
    const ByteVector have = found_elements(again, tensor, why);
    const auto want = elements_of(content, tensor);
    if (why.empty() && have != *want) why = "other elements";
    if (!why.empty()) out += tensor.name + " " + tensor.state + ": " + why + "\n";
  }
  const Catalog& left = content.catalog();
  const Catalog& right = again.catalog();
  out += group_differences(left, right);
  if (left.step != right.step) out += "step differs\n";
  for (const auto& [name, steps] : left.param_steps)
    if (const auto found = right.param_steps.find(name);
        found == right.param_steps.end() || found->second != steps)
      out += "steps of " + name + " differ\n";
  for (const ValueEntry& value : left.values) {
    const auto found =
        std::ranges::find_if(right.values, [&](const auto& v) { return v.key == value.key; });
    if (!value.echoed &&
        (found == right.values.end() || to_json(found->value) != to_json(value.value)))
      out += "value " + value.key + " differs\n";
  }
  return out;
}

Layout layout_for(const Catalog& content, Policy policy, std::uint32_t world) {
  std::vector<Shape> shapes;
  for (const TensorEntry& tensor : content.tensors) shapes.push_back(tensor.shape);
  Layout::Spec spec;
  spec.policy = policy;
  spec.mesh.shard_world = world;
  auto layout = Layout::make(std::move(spec), std::move(shapes));
  EBB_CHECK(layout.has_value());
  return std::move(*layout);
}

}  // namespace ebb::test_support
