// Formats that are several files: the whole way from bytes to a catalog and its elements.
#include "ebb/formats/deepspeed/names.h"
#include "ebb/formats/json/weight_index.h"
#include "ebb/formats/safetensors/header.h"
#include "tests/fuzz/inputs.h"
#include "tests/fuzz/targets.h"

namespace ebb::fuzz {

void dcp(ByteView input) { look_at(tree_of(input, ".metadata")); }

void megatron(ByteView input) { look_at(tree_of(input, "metadata.json")); }

void megatron_ranks(ByteView input) {
  look_at(tree_of(input, "latest_checkpointed_iteration.txt"));
}

void dcp_ranks(ByteView input) { look_at(tree_of(input, "__0.metadata")); }

void safetensors_header(ByteView input) {
  const formats::MemorySource source("m", ByteVector(input.begin(), input.end()));
  const auto header = formats::safetensors::read_header(source);
  if (!header) return;
  std::uint64_t at = 0;
  for (const auto& tensor : header->tensors) {
    EBB_CHECK(tensor.begin <= tensor.end && tensor.end <= input.size() - header->data_start);
    at += tensor.end - tensor.begin;
  }
  EBB_CHECK(at == input.size() - header->data_start);
  look_at(tree_of(input, "model.safetensors"));
}

void safetensors_index(ByteView input) {
  const auto tree = tree_of(input, "model.safetensors.index.json");
  const auto source = tree->open("model.safetensors.index.json");
  if (!source) return;
  if (const auto index = formats::read_weight_index(**source))
    for (const auto& weight : index->weights) EBB_CHECK(weight.file.find('/') == std::string::npos);
  look_at(tree);
}

void deepspeed(ByteView input) { look_at(tree_of(input, "latest")); }

// A line each: the name of an empty file.
void deepspeed_names(ByteView input) {
  constexpr std::size_t kMaxNames = 64;
  test_support::MemoryTree tree("t");
  std::string_view rest = formats::text_of(input);
  for (std::size_t i = 0; i < kMaxNames && !rest.empty(); ++i) {
    const std::size_t line = std::min(rest.find('\n'), rest.size());
    const std::string name(rest.substr(0, line));
    formats::deepspeed::parse_name(name);
    if (tree.find(name) == nullptr) tree.add(name, i == 0 ? "tag" : "");
    rest.remove_prefix(std::min(line + 1, rest.size()));
  }
  if (const auto files = formats::deepspeed::find_files(tree)) {
    for (const formats::deepspeed::RankFiles& rank : files->of_model_ranks) {
      for (const auto& [data_rank, name] : rank.model) EBB_CHECK(tree.find(name) != nullptr);
      for (const auto& [data_rank, name] : rank.optimizer) EBB_CHECK(tree.find(name) != nullptr);
    }
    for (const auto& [place, name] : files->layers) EBB_CHECK(tree.find(name) != nullptr);
    for (const auto& [place, name] : files->experts) EBB_CHECK(tree.find(name) != nullptr);
  }
}

void any_tree(ByteView input) { look_at(tree_of(input, "")); }

}  // namespace ebb::fuzz
