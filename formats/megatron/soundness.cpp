#include <algorithm>
#include <map>
#include <set>

#include "ebb/formats/core/folder_tree.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/sha256.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/elements/masters.h"
#include "ebb/formats/elements/writer_faults.h"
#include "ebb/formats/json/json_reader.h"
#include "ebb/formats/megatron/folder.h"
#include "ebb/formats/megatron/megatron.h"
#include "ebb/formats/megatron/names.h"
#include "ebb/formats/megatron/run_args.h"
#include "ebb/formats/torch_save/torch_save.h"

namespace ebb::formats::megatron {
namespace {

constexpr std::string_view kIntegrity = "integrity.json";
constexpr std::uint64_t kMaxIntegrity = 64 * MiB;
constexpr std::uint64_t kPass = 4 * MiB;

using Digests = std::vector<std::pair<std::string, std::string>>;  // file, SHA-256 in hex

// Written by save(verify_integrity=True): {"algorithm": "sha256", "files": {name: hex}}.
Result<Digests> read_digests(const SourceTree& tree) {
  EBB_TRY_ASSIGN(const std::shared_ptr<const ByteSource> source, tree.open(kIntegrity));
  EBB_TRY_ASSIGN(const ByteVector text, read_bytes(*source, 0, source->size(), kMaxIntegrity));
  json::Reader json({std::string(source->name()), 0, std::string(kIntegrity)}, text_of(text));
  std::string algorithm = "sha256";
  Digests digests;
  const auto add_file = [&](std::string_view file, json::Value hex) -> Result<> {
    EBB_TRY_ASSIGN(std::string digest, json.string(hex, {"", file}));
    digests.emplace_back(file, std::move(digest));
    return {};
  };
  EBB_TRY(json.read([&](std::string_view key, json::Value value) -> Result<> {
    if (key == "files") return json.fields(value, "files", add_file);
    if (key == "algorithm") {
      EBB_TRY_ASSIGN(algorithm, json.string(value, "algorithm"));
    }
    return {};
  }));
  if (algorithm == "sha256") return digests;
  return Error{Code::unsupported,
               compose("{}:0: algorithm '{}' is not known to this version; sha256 is",
                       source->name(), printable(algorithm))};
}

Result<> check_digest(const SourceTree& tree, const std::string& file, const std::string& said) {
  const std::string where = compose("{}/{}", tree.root(), printable(file));
  if (tree.find(file) == nullptr)
    return Error{Code::incomplete, where + ": missing; integrity.json lists it"};
  EBB_TRY_ASSIGN(const std::shared_ptr<const ByteSource> source, tree.open(file));
  Sha256 digest;
  for (std::uint64_t at = 0; at < source->size(); at += kPass) {
    EBB_TRY_ASSIGN(const ByteVector bytes,
                   read_bytes(*source, at, std::min(kPass, source->size() - at), kPass));
    digest.update(bytes);
  }
  const std::string found = digest.hex();
  if (found == said) return {};
  return Error{Code::corrupt, compose("{}: its SHA-256 is {}, integrity.json says {}", where, found,
                                      printable(said))};
}

void check_files(const SourceTree& tree, std::vector<Error>& problems) {
  if (tree.find(kIntegrity) == nullptr) return;
  const auto digests = read_digests(tree);
  if (!digests) {
    problems.push_back(digests.error());
    return;
  }
  for (const auto& [file, digest] : *digests)
    if (const auto checked = check_digest(tree, file, digest); !checked)
      problems.push_back(checked.error());
}

std::string dotted(const std::vector<std::uint64_t>& numbers) {
  std::string out;
  for (const std::uint64_t number : numbers) {
    if (!out.empty()) out += '.';
    out += std::to_string(number);
  }
  return out;
}

// The first place of a grid, in row-major order, that is not among those there.
std::vector<std::uint64_t> first_missing(const std::vector<std::uint64_t>& grid,
                                         const std::set<std::vector<std::uint64_t>>& there) {
  std::vector<std::uint64_t> at(grid.size(), 0);
  while (there.contains(at))
    for (std::size_t d = grid.size(); d > 0 && ++at[d - 1] == grid[d - 1]; --d) at[d - 1] = 0;
  return at;
}

// Of an object that is cut over ranks, every part must be there: `<key>/shard_<at>_<grid>`.
void check_objects(const Catalog& catalog, std::vector<Error>& problems) {
  using Numbers = std::vector<std::uint64_t>;
  std::map<std::pair<std::string, Numbers>, std::set<Numbers>> objects;
  for (const ValueEntry& entry : catalog.values) {
    auto key = object_key(entry.key);
    if (!key || key->offsets.size() != key->shape.size()) continue;
    objects[{std::move(key->name), std::move(key->shape)}].insert(std::move(key->offsets));
  }
  for (const auto& [object, there] : objects) {
    const auto parts = checked_volume(object.second);
    if (parts && *parts <= there.size()) continue;
    problems.push_back(
        {Code::incomplete,
         compose("object {}: part {} of {} is missing; {} are there", json_string(object.first),
                 dotted(first_missing(object.second, there)), dotted(object.second),
                 there.size())});
  }
}

// Behind each step a model's weights are its masters, rounded: but those that the optimizer keeps
// in eight bits, and where a writer is known to have stored other masters.
void check_masters(const std::shared_ptr<const SourceTree>& tree, const Catalog& catalog,
                   std::vector<Error>& problems) {
  for (const std::string_view narrow : {"fp8_param_gather", "fp8_param", "fp4_param"})
    if (run_arg(catalog, narrow).value_or(0) != 0) return;
  const auto checkpoint = describe_megatron(tree);
  if (!checkpoint) return;
  const auto shifted = shifted_masters(**checkpoint);
  const bool all = shifted && !*shifted;
  auto apart = weights_apart_from_masters(
      **checkpoint, tree->root(),
      "a job steps on from the master weights; use the checkpoint before this one if those are the "
      "wrong ones",
      [&](const TensorEntry& master) { return all || !in_model_space(master); });
  if (apart) problems.push_back(*std::move(apart));
}

}  // namespace

}  // namespace ebb::formats::megatron

namespace ebb::formats {

std::vector<Error> megatron_problems(const std::shared_ptr<const SourceTree>& tree,
                                     const Catalog& catalog) {
  std::vector<Error> problems;
  const auto place = megatron::find_place(*tree);
  if (!place) return {place.error()};
  const auto folder = folder_of(tree, place->folder);
  megatron::check_files(*folder, problems);
  megatron::check_objects(catalog, problems);
  if (std::string differ = megatron::iterations_that_differ(catalog); !differ.empty())
    problems.push_back({Code::layout, compose("{}: {}", folder->root(), differ)});
  if (catalog.format == "megatron") megatron::check_masters(tree, catalog, problems);
  return problems;
}

std::vector<Error> megatron_rank_problems(const std::shared_ptr<const SourceTree>& tree,
                                          const Catalog& catalog) {
  std::vector<Error> problems = torch_problems(tree, catalog);
  if (std::string differ = megatron::iterations_that_differ(catalog); !differ.empty())
    problems.push_back({Code::layout, compose("{}: {}", tree->root(), differ)});
  return problems;
}

}  // namespace ebb::formats
