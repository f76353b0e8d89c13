// Every readable fixture to every writable format, for several worlds and every partition, in
// memory: what arrives is what was there.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "ebb/formats/conversion/content_check.h"
#include "ebb/formats/conversion/convert.h"
#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/describe.h"
#include "ebb/formats/registry.h"
#include "ebb/formats/state_dict/names.h"
#include "ebb/libswap/tree/file_tree.h"
#include "ebb/libswap/write/plan_check.h"
#include "tests/support/emit_in_memory.h"

namespace ebb::libswap {
namespace {

constexpr Policy kPolicies[] = {Policy::replicated, Policy::zero12, Policy::zero12_boundary,
                                Policy::zero3,      Policy::rows,   Policy::layer_wise};
constexpr std::uint32_t kWorlds[] = {1, 2, 3, 5};

// Formats without a word for a state keep it under another one: masters as the weights.
bool is_weight(const TensorEntry& tensor) {
  return tensor.state == "param" || tensor.state == "buffer" || tensor.state == "master" ||
         tensor.state == "tensor";
}

bool could_be(const TensorEntry& wanted, const TensorEntry& found) {
  const bool words = wanted.state == found.state || (is_weight(wanted) && is_weight(found));
  return words && wanted.name == found.name && wanted.shape == found.shape &&
         formats::is_widening(wanted.dtype, found.dtype);
}

ByteVector narrowed(const TensorEntry& from, ByteVector bytes, DType to) {
  if (from.dtype == to) return bytes;
  ByteVector out(bytes.size() / bytes_of(from.dtype) * bytes_of(to));
  formats::cast_floats(from.dtype, bytes, to, out);
  return out;
}

// One line per tensor of the content that the written checkpoint lacks or holds differently.
std::set<std::string> lost_tensors(const formats::Conversion& conversion,
                                   const Checkpoint& written) {
  std::set<std::uint32_t> elsewhere(conversion.plan.omitted.begin(), conversion.plan.omitted.end());
  for (const auto& derived : conversion.plan.derived) elsewhere.insert(derived.tensor);
  std::multimap<std::string_view, const TensorEntry*> by_name;
  for (const TensorEntry& tensor : written.catalog().tensors) by_name.emplace(tensor.name, &tensor);
  std::set<std::string> lost;
  const auto& tensors = conversion.content->catalog().tensors;
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    if (elsewhere.contains(i)) continue;
    const auto bytes = test_support::elements_of(*conversion.content, tensors[i]);
    EXPECT_TRUE(bytes) << bytes.error().message;
    bool found = false;
    const auto [first, last] = by_name.equal_range(tensors[i].name);
    for (auto one = first; one != last && !found; ++one) {
      if (!could_be(tensors[i], *one->second)) continue;
      const auto read = test_support::elements_of(written, *one->second);
      if (!read) return {"cannot read: " + read.error().message};
      found = narrowed(*one->second, *read, tensors[i].dtype) == *bytes;
    }
    if (!found) lost.insert("lost: tensor " + label_of(tensors[i]));
  }
  return lost;
}

using Lines = std::set<std::string>;

// What does not arrive, or why nothing does; one line each.
Lines outcome(const Checkpoint& source, const formats::ConvertRequest& request) {
  const auto conversion = formats::plan_conversion(source, request);
  if (!conversion) return {"refused: " + conversion.error().message};
  const auto& plan = conversion->plan;
  const Catalog& content = conversion->content->catalog();
  const auto sound = check_plan(plan, content);
  if (!sound) return {"plan: " + sound.error().message};
  if (auto all = check_stores_everything(plan, content, *sound); !all)
    return {"plan: " + all.error().message};
  auto tree = test_support::carry_out(plan, *conversion->content, "out");
  if (!tree) return {"writing: " + tree.error().message};
  auto written = formats::describe(*tree);
  if (!written) return {"reading: " + written.error().message};
  if (formats::format_of((*written)->catalog()).traits().keys == formats::Keys::state_dict)
    written = formats::named_like(std::move(*written), content);
  Lines lines = lost_tensors(*conversion, **written);
  if ((*written)->catalog().format != request.to.name())
    lines.insert("read as " + (*written)->catalog().format);
  if (auto covered = prove_coverage((*written)->catalog()); !covered)
    lines.insert("coverage: " + covered.error().message);
  for (const std::string& line : formats::lost_content(content, plan, (*written)->catalog()))
    lines.insert("lost: " + line);
  for (const std::string& line : plan.dropped) lines.insert("dropped: " + line);
  return lines;
}

// What the formats cannot do, as data: a line of outcome() is expected when it begins so. Sources
// and targets are beginnings too.
struct Expected {
  std::string_view source;
  std::string_view target;
  std::string_view line;
};
constexpr Expected kExpected[] = {
    {"megatron/adam_dp_reshardable_dp3", "", "refused: tensor 'optimizer.distributed.dp_group"},
    {"megatron/muon_distopt_buckets_dp2", "", "refused: tensor 'chained_1.optimizer.distributed."},
    // ZeRO has its three ways of cutting, and files about an optimizer's parameters.
    {"", "deepspeed", "refused: DeepSpeed cannot hold the partition replicated"},
    {"", "deepspeed", "refused: DeepSpeed cannot hold the partition rows"},
    {"", "deepspeed", "refused: DeepSpeed cannot hold the partition layer-wise"},
    {"", "deepspeed", "refused: nothing in this content is trained"},
    {"", "deepspeed", "dropped: rng (tensor) [17]: belongs to no parameter"},
    // What belongs to no model or optimizer of a state dict becomes no parameter.
    {"dcp/", "megatron", "dropped: tensor \"rng\": belongs to no model"},
    {"dcp/layout_words", "deepspeed", "dropped: ema.shadow."},
    {"dcp/numbers_ddp_w2", "", "refused: 'optimizer."},
    {"torch/layout_soap", "deepspeed", "dropped: "},
    {"torch/layout_soap", "megatron", "dropped: tensor \""},  // not of their parameters' shapes
    {"torch/layout_offloaded", "", "refused: 'optimizer."},
    {"dcp/layout_unclear", "", "refused: tensor '"},
    {"dcp/zoo_w1", "", "refused: tensor '"},
    // A pickle that calls what no framework writes goes nowhere.
    {"dcp/unsafe_value_w1", "", "dropped: value \"config"},
    {"dcp/unsafe_value_w1", "", "dropped: value \"extra\": loading it would have Python call"},
    {"torch/dtypes_views", "", "refused: tensor '"},
    {"torch/layout_numbers", "", "refused: 'optimizer."},
    {"folders/trainer", "", "refused: 'optimizer."},  // names that nothing records
    {"folders/nanochat", "", "refused: 'optimizer."},
    {"torch/odd_keys", "deepspeed", "dropped: 5 (tensor)"},
    {"torch/odd_keys", "deepspeed", "dropped: ('layer', 0).w (tensor)"},
    {"torch/odd_keys", "megatron", "dropped: tensor \"5\": belongs to no model"},
    {"torch/odd_keys", "megatron", "dropped: tensor \"('layer', 0).w\": belongs to no model"},
    {"megatron/api_uneven_prepend2_w3", "deepspeed", "dropped: decoder.uneven (momentum_buffer)"},
    {"hdf5/plain", "deepspeed", "dropped: bias ("},
    {"hdf5/deflate_fletcher", "deepspeed", "dropped: b ("},
    {"safetensors/all_dtypes", "deepspeed", "refused: parameter \"\""},
    {"megatron/", "torch", "dropped: value \"args\": holds an object of class argparse"},
    // Folders of a trainer have a file for each part, and for little else.
    {"", "transformers", "refused: transformers has a model and its optimizer"},
    {"", "accelerate-fsdp", "refused: accelerate-fsdp has a model and its optimizer"},
    {"", "accelerate-fsdp", "refused: nothing says how the optimizer is set"},
    {"", "transformers", "refused: transformers has one model and one optimizer"},
    {"", "accelerate-fsdp", "refused: accelerate-fsdp has one model and one optimizer"},
    {"", "transformers", "refused: an optimizer of transformers has numbers for names"},
    {"", "transformers", "dropped: value \""},
    {"", "accelerate-fsdp", "dropped: value \""},
    {"dcp/", "transformers", "dropped: tensor \"rng\": neither"},
    {"dcp/", "accelerate-fsdp", "dropped: tensor \"rng\": neither"},
    {"dcp/layout_state", "", "dropped: tensor \"state.rng.0.torch\": neither"},
    {"dcp/layout_titan", "", "dropped: tensor \"train_state.step\": neither"},
    {"dcp/layout_words", "", "dropped: tensor \"ema.shadow."},
    {"megatron_torch/", "torch", "dropped: value \"args\": holds an object of class argparse"},
    {"torch_checkpointing/trained_w3", "", "dropped: tensor \"rng\": neither"},
    // torch_checkpointing has files called as its entries, each cut in one of two ways.
    {"", "torch-checkpointing", "refused: torch-checkpointing holds tensors cut by rows"},
    {"", "torch-checkpointing", "refused: torch_checkpointing keeps each entry at the top in"},
    {"torch_checkpointing/", "megatron", "dropped: tensor \""},
    {"torch_checkpointing/", "deepspeed", "dropped: "},
    // Jobs of others know no classes of torchao's.
    {"quantized/", "", "refused: tensor 'up.weight' (exp_avg) is of the class"},
    {"quantized/bnb_", "", "refused: tensor '"},  // bitsandbytes' states
    // Megatron-FSDP without optimizer state is plain DCP.
    {"", "megatron-fsdp", "read as dcp"},
};
bool covers(const Expected& expected, std::string_view source, std::string_view target,
            std::string_view line) {
  return source.starts_with(expected.source) && line.starts_with(expected.line) &&
         target.starts_with(expected.target);
}

bool is_expected(std::string_view source, std::string_view target, std::string_view line) {
  return std::ranges::any_of(
      kExpected, [&](const Expected& one) { return covers(one, source, target, line); });
}

struct Source {
  std::string name;  // "dcp/zoo_w1"
  std::unique_ptr<Checkpoint> checkpoint;
};

// Every fixture that this build reads.
std::vector<Source> readable_fixtures() {
  std::vector<Source> sources;
  for (const auto& family : std::filesystem::directory_iterator(EBB_FIXTURES)) {
    if (!family.is_directory()) continue;
    for (const auto& entry : std::filesystem::directory_iterator(family)) {
      const std::string name = entry.path().filename().string();
      const auto data = entry.path() / "data";
      if (name.starts_with("bad_") || !std::filesystem::exists(data)) continue;
      auto tree = open_tree(data);
      EXPECT_TRUE(tree) << tree.error().message;
      auto read = formats::describe(*tree);
      if (!read && read.error().code == Code::unsupported) continue;
      EXPECT_TRUE(read) << data << read.error().message;
      if (read)
        sources.push_back({family.path().filename().string() + "/" + name, std::move(*read)});
    }
  }
  return sources;
}

const std::vector<Source>& sources() {
  static const std::vector<Source> all = readable_fixtures();
  return all;
}

class CrossFormat : public ::testing::TestWithParam<std::string_view> {
 protected:
  const formats::Format& target() const { return *formats::format_named(GetParam()); }
};

TEST_P(CrossFormat, EveryFixtureArrivesWholeOnAnyRanksInAnyPartition) {
  std::size_t cases = 0;
  for (const Source& source : sources()) {
    std::map<std::string, std::string> unexpected;  // line -> where
    for (const std::uint32_t world : kWorlds)
      for (const Policy policy : kPolicies) {
        ++cases;
        const formats::ConvertRequest request{
            .from = formats::format_of(source.checkpoint->catalog()),
            .to = target(),
            .world = world,
            .policy = policy,
            .names_by_order = formats::NamesByOrder::taken};
        for (const std::string& line : outcome(*source.checkpoint, request))
          if (!is_expected(source.name, GetParam(), line))
            unexpected[line] += " " + std::string(name_of(policy)) + "/" + std::to_string(world);
      }
    for (const auto& [line, where] : unexpected)
      ADD_FAILURE() << source.name << " -> " << GetParam() << where << ": " << line;
  }
  EXPECT_GT(cases, 1000u);
}

// HDF5 is described by a program of its own, which needs files: tools_convert_hdf5_test.
std::vector<std::string_view> writable_formats() {
  std::vector<std::string_view> names;
  for (const formats::Format* format : formats::written_formats())
    if (format->name() != "hdf5") names.push_back(format->name());
  return names;
}

INSTANTIATE_TEST_SUITE_P(To, CrossFormat, ::testing::ValuesIn(writable_formats()),
                         [](const auto& one) {
                           std::string name(one.param);
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace ebb::libswap
