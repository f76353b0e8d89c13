#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>

#include "ebb/formats/catalog/value_json.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/json/weight_index.h"
#include "ebb/formats/safetensors/documents.h"
#include "ebb/formats/safetensors/header.h"
#include "ebb/formats/safetensors/safetensors.h"
#include "ebb/formats/state_dict/numbers.h"

namespace ebb::formats {
namespace safetensors {
namespace {

constexpr std::string_view kSuffix = ".safetensors";
constexpr std::string_view kIndexSuffix = ".safetensors.index.json";

// Files of ranks, as torch DCP writes them.
bool is_sharded(const Catalog& catalog) {
  return std::ranges::any_of(catalog.files,
                             [](const FileEntry& file) { return file.rank.has_value(); });
}

bool is_top_level(std::string_view name) { return name.find('/') == std::string_view::npos; }

std::optional<std::uint32_t> number_of(std::string_view digits) {
  return digits.size() <= 9 ? parse_number<std::uint32_t>(digits) : std::nullopt;
}

// "shard-00002-model-00001-of-00001.safetensors" -> rank 1.
std::optional<Rank> rank_of(std::string_view name) {
  constexpr std::string_view kShard = "shard-";
  const std::size_t dash = name.find("-model-");
  if (!name.starts_with(kShard) || dash == std::string_view::npos) return std::nullopt;
  const auto number = number_of(name.substr(kShard.size(), dash - kShard.size()));
  if (!number || *number == 0) return std::nullopt;
  return Rank{*number - 1};
}

class SafetensorsCheckpoint : public Checkpoint {
 public:
  SafetensorsCheckpoint(Catalog catalog, std::shared_ptr<const SourceTree> tree)
      : catalog_(std::move(catalog)), tree_(std::move(tree)) {}

  const Catalog& catalog() const override { return catalog_; }

  Result<> read_chunk(const TensorEntry& tensor, const Chunk& chunk, std::uint64_t first,
                      std::span<std::byte> into) const override {
    const std::string& file = catalog_.files[chunk.file].name;
    EBB_TRY_ASSIGN(const auto source, tree_->open(file));
    if (auto done = source->read(chunk.offset + first, into); !done)
      return std::move(done).error().about("'" + printable(tensor.name) + "'");
    return {};
  }

 private:
  Catalog catalog_;
  std::shared_ptr<const SourceTree> tree_;
};

class Describer {
 public:
  explicit Describer(std::shared_ptr<const SourceTree> tree) : tree_(std::move(tree)) {}

  Result<std::unique_ptr<Checkpoint>> run() {
    catalog_.format = "safetensors";
    catalog_.producer = "safetensors";
    EBB_TRY(choose_files());
    for (std::uint32_t file = 0; file < catalog_.files.size(); ++file) EBB_TRY(add_file(file));
    EBB_TRY(check_index());
    EBB_TRY(check_numbers());
    summarize();
    return std::unique_ptr<Checkpoint>(
        std::make_unique<SafetensorsCheckpoint>(std::move(catalog_), tree_));
  }

 private:
  std::string path_of(std::string_view name) const {
    const std::string root(tree_->root());
    return root.ends_with(name) ? root : compose("{}/{}", root, name);
  }

  // One of several files may be all that somebody asks for; alone in a folder it is not.
  bool is_named_itself() const {
    return tree_->entries().size() == 1 && tree_->root().ends_with(tree_->entries().front().name);
  }

  Result<> choose_files() {
    std::set<std::string> names;
    for (const SourceTree::Entry& entry : tree_->entries()) {
      if (!is_top_level(entry.name)) continue;
      if (entry.name.ends_with(kIndexSuffix)) {
        if (!index_name_.empty())
          return Error{Code::unsupported,
                       path_of(entry.name) + ": a second index beside " + index_name_};
        index_name_ = entry.name;
      } else if (entry.name.ends_with(kSuffix) || tree_->entries().size() == 1) {
        names.insert(entry.name);
      }
    }
    if (!index_name_.empty()) {
      EBB_TRY_ASSIGN(const auto source, tree_->open(index_name_));
      EBB_TRY_ASSIGN(index_, read_weight_index(*source));
      std::set<std::string> listed;
      for (const WeightIndex::Weight& weight : index_->weights) listed.insert(weight.file);
      names = std::move(listed);
    }
    for (const std::string& name : names) {
      const SourceTree::Entry* entry = tree_->find(name);
      if (entry == nullptr)
        return Error{Code::incomplete, compose("{}: missing, though {} says tensors are there",
                                               path_of(name), index_name_)};
      catalog_.files.push_back({name, entry->size, rank_of(name)});
    }
    return {};
  }

  Result<> add_file(std::uint32_t file) {
    const std::string& name = catalog_.files[file].name;
    EBB_TRY_ASSIGN(const auto source, tree_->open(name));
    EBB_TRY_ASSIGN(Header header, read_header(*source));
    std::optional<ShardingInfo> info;
    const std::string shown(source->name());
    if (const MetadataText* found = header.find_metadata("DCP_SHARDING_INFO")) {
      EBB_TRY_ASSIGN(info, read_sharding_info(shown, found->text));
    }
    add_texts(header, name);
    if (is_ours(header)) EBB_TRY(add_documents(header, name, shown));
    if (catalog_.tensors.empty()) catalog_.tensors.reserve(header.tensors.size());
    for (HeaderTensor& tensor : header.tensors) {
      data_bytes_ += tensor.end - tensor.begin;
      const std::uint64_t begin = header.data_start + tensor.begin;
      if (auto added = add_tensor({file, begin}, std::move(tensor), info ? &*info : nullptr);
          !added)
        return std::move(added).error().within(compose("{}:{}", source->name(), begin));
    }
    return {};
  }

  struct Place {
    std::uint32_t file = 0;
    std::uint64_t begin = 0;
  };

  Result<> add_tensor(Place place, HeaderTensor tensor, const ShardingInfo* info) {
    const std::size_t dimensions = tensor.shape.size();
    Chunk chunk{{Shape(dimensions, 0), std::move(tensor.shape)},
                place.file,
                place.begin,
                tensor.end - tensor.begin,
                catalog_.files[place.file].rank.value_or(Rank{0}),
                0};
    std::string key = std::move(tensor.key);
    const auto saved = info == nullptr ? ShardingInfo::const_iterator{} : info->find(key);
    const bool placed = info != nullptr && saved != info->end();
    if (placed) {
      if (saved->second.offsets.size() != dimensions)
        return Error{
            Code::corrupt,
            compose("tensor '{}': saved_offsets has {} numbers for the shape {}", printable(key),
                    saved->second.offsets.size(), to_string(chunk.box.extent))};
      chunk.box.offset = saved->second.offsets;
      if (saved->second.logical_fqn) key = *saved->second.logical_fqn;
    }
    if (index_) keys_in_files_.emplace(key, place.file);
    // The keys of one header differ, so one file needs no table of them.
    std::size_t number = catalog_.tensors.size();
    if (info != nullptr || catalog_.files.size() > 1)
      number = tensor_of_key_.emplace(key, number).first->second;
    if (number == catalog_.tensors.size()) {
      const auto told = identity_.find(key);
      NamedState named = told == identity_.end() ? named_state_of(key) : told->second;
      catalog_.tensors.push_back({std::move(key),
                                  {},
                                  std::move(named.name),
                                  std::move(named.state),
                                  tensor.dtype,
                                  Shape(dimensions, 0),
                                  {}});
    } else if (!placed) {
      const Chunk& first = catalog_.tensors[number].chunks.front();
      return Error{Code::corrupt, compose("tensor '{}' is already in {}", printable(key),
                                          catalog_.files[first.file].name)};
    }
    return grow(catalog_.tensors[number], std::move(chunk), tensor.dtype);
  }

  // The whole shape is nowhere recorded: it is what the shards reach.
  Result<> grow(TensorEntry& entry, Chunk chunk, DType dtype) {
    const Shape& extent = chunk.box.extent;
    if (entry.dtype != dtype || entry.shape.size() != extent.size())
      return Error{Code::corrupt,
                   compose("tensor '{}' is {} {} here, but {} of {} dimensions in another shard",
                           printable(*entry.key), name_of(dtype), to_string(extent),
                           name_of(entry.dtype), entry.shape.size())};
    for (std::size_t d = 0; d < entry.shape.size(); ++d) {
      const auto reach = checked_add(chunk.box.offset[d], chunk.box.extent[d]);
      if (!reach)
        return Error{Code::corrupt, "tensor '" + printable(*entry.key) + "': offsets wrap"};
      entry.shape[d] = std::max(entry.shape[d], *reach);
    }
    if (!checked_volume(entry.shape))
      return Error{Code::corrupt, compose("tensor '{}': {} does not fit 64 bits",
                                          printable(*entry.key), to_string(entry.shape))};
    entry.chunks.push_back(std::move(chunk));
    return {};
  }

  void add_texts(const Header& header, const std::string& file) {
    const bool dcp = header.find_metadata("DCP_SHARDING_INFO") != nullptr;
    if (const MetadataText* version = header.find_metadata("DCP_VERSION"))
      catalog_.producer = "torch DCP safetensors writer " + printable(version->text, 20);
    const bool ours = is_ours(header);
    const bool added = ours && header.find_metadata(kMarkerKey)->text == kFormatAdded;
    if (ours) catalog_.producer = "Ebb";
    for (const auto& [key, text, offset] : header.metadata) {
      if (ours && (is_of_ours(key) || (key == "format" && added))) continue;
      const bool torchs_own = !ours && key == "format";
      if (dcp && (key == "DCP_SHARDING_INFO" || key == "DCP_VERSION" || torchs_own)) continue;
      add_value({key, {key}, Value::of_string(text)}, file);
    }
  }

  // We write them into one file; where several have some, people put files together.
  Result<> add_documents(const Header& header, const std::string& file, const std::string& shown) {
    if (const MetadataText* identity = header.find_metadata(kIdentityKey)) {
      EBB_TRY_ASSIGN(IdentityMap more, read_identity(shown, identity->text));
      identity_.merge(std::move(more));
    }
    EBB_TRY_ASSIGN(ReadDocuments told, read_documents(shown, header));
    const auto mixed = [&](std::string_view key, std::int64_t here, std::int64_t there) {
      return Error{
          Code::corrupt,
          compose("{}:{}: __metadata__: '{}' says {}, another file says {}: two saves are mixed",
                  shown, header.find_metadata(key)->offset, key, here, there)};
    };
    if (told.step && catalog_.step && *told.step != *catalog_.step)
      return mixed(kStepKey, *told.step, *catalog_.step);
    if (told.step) catalog_.step = told.step;
    for (const auto& [name, steps] : told.param_steps)
      if (const auto [known, fresh] = catalog_.param_steps.emplace(name, steps);
          !fresh && known->second != steps)
        return mixed(kParamStepsKey, steps, known->second);
    if (!told.groups.empty() && groups_json(told.groups) != groups_json(catalog_.groups))
      std::ranges::move(told.groups, std::back_inserter(catalog_.groups));
    for (ValueEntry& entry : told.values) add_value(std::move(entry), file);
    return {};
  }

  // Files repeat what is the same for all; what differs is each file's own.
  void add_value(ValueEntry entry, const std::string& file) {
    const auto [known, fresh] = value_of_key_.emplace(entry.key, catalog_.values.size());
    if (!fresh) {
      if (to_json(catalog_.values[known->second].value) == to_json(entry.value)) return;
      entry.key.append("@").append(file);
      entry.path = {entry.key};
    }
    catalog_.values.push_back(std::move(entry));
  }

  Result<> check_index() const {
    if (!index_) return {};
    const std::string index = path_of(index_name_) + ":0: ";
    std::map<std::string, std::uint32_t> number_of_file;
    for (std::uint32_t i = 0; i < catalog_.files.size(); ++i)
      number_of_file[catalog_.files[i].name] = i;
    for (const WeightIndex::Weight& weight : index_->weights)
      if (!keys_in_files_.contains({weight.key, number_of_file.at(weight.file)}))
        return Error{Code::incomplete,
                     compose("{}tensor '{}' should lie in {}, but that file does not hold it",
                             index, printable(weight.key), weight.file)};
    if (index_->total_size && *index_->total_size != data_bytes_)
      return Error{Code::corrupt, compose("{}total_size is {} but the tensors have {} bytes", index,
                                          *index_->total_size, data_bytes_)};
    return {};
  }

  // Numbered names say how many files there must be: shard-0000R-... from 1 without a gap,
  // ...-0000i-of-0000N all N of them.
  Result<> check_numbers() const {
    std::set<std::uint32_t> ranks;
    std::map<std::string, std::set<std::uint32_t>> parts;  // "model-" ... "-of-00003" -> numbers
    for (const FileEntry& file : catalog_.files) {
      if (file.rank) ranks.insert(index_of(*file.rank) + 1);
      const std::string stem = file.name.substr(0, file.name.rfind(kSuffix));
      const std::size_t of = stem.rfind("-of-");
      if (of == std::string::npos || of < 5 || is_named_itself()) continue;
      if (const auto part = number_of(stem.substr(of - 5, 5)))
        parts[stem.substr(0, of - 5) + '\n' + stem.substr(of)].insert(*part);
    }
    const auto gaps = [](const std::set<std::uint32_t>& have, std::uint32_t last) {
      std::string out;
      for (std::uint32_t i = 1; i <= last && out.size() < 60; ++i)
        if (!have.contains(i)) out.append(out.empty() ? "" : ", ").append(std::to_string(i));
      return out;
    };
    const std::string root(tree_->root());
    if (!is_named_itself() && !ranks.empty())
      if (const std::string missing = gaps(ranks, *ranks.rbegin()); !missing.empty())
        return Error{Code::incomplete, root + ": shard files missing: " + missing};
    for (const auto& [name, have] : parts) {
      const auto total = number_of(std::string_view(name).substr(name.rfind("-of-") + 4));
      if (!total) continue;
      if (const std::string missing = gaps(have, *total); !missing.empty())
        return Error{Code::incomplete,
                     compose("{}: of the {} files of {}*, these are missing: {}", root, *total,
                             name.substr(0, name.find('\n')), missing)};
    }
    return {};
  }

  void summarize() {
    for (const FileEntry& file : catalog_.files)
      if (file.rank) catalog_.world = std::max(catalog_.world, index_of(*file.rank) + 1);
    const std::size_t files = catalog_.files.size();
    catalog_.partition = catalog_.world > 1 ? compose("boxes over {} ranks", catalog_.world)
                                            : compose("whole tensors in {}{}", files,
                                                      (files == 1 ? " file" : " files"));
    catalog_.notes.push_back("this format has no checksums: a changed byte of data cannot be seen");
    if (is_sharded(catalog_)) catalog_.notes.emplace_back(kLastShardUnseen);
    std::ranges::move(said_by_order(catalog_).lines(), std::back_inserter(catalog_.notes));
    if (index_)
      for (const std::string& name : index_->unread)
        catalog_.notes.push_back(
            compose("{}: metadata '{}' is not read", index_name_, printable(name)));
  }

  std::shared_ptr<const SourceTree> tree_;
  Catalog catalog_;
  std::string index_name_;  // empty: there is none
  std::optional<WeightIndex> index_;
  std::unordered_map<std::string, std::size_t> tensor_of_key_;
  std::unordered_map<std::string, std::size_t> value_of_key_;
  std::set<std::pair<std::string, std::uint32_t>> keys_in_files_;
  std::uint64_t data_bytes_ = 0;
  IdentityMap identity_;
};

// Files of ours may say more.
bool says_tensors_only(const ResumeQuestion& question) {
  return !question.catalog.step && question.catalog.groups.empty();
}

using Says = ResumeRule::Says;
constexpr ResumeRule kRules[] = {
    {Says::no, states_without_groups,
     "no framework's optimizer loads safetensors, and the states have no parameter groups beside "
     "them, which loaders ask for in any format"},
    {Says::no, always,
     "no framework's optimizer loads safetensors; as DCP the tensors can be loaded", "dcp"},
    {Says::note, says_tensors_only, "it has no step and no parameter groups: set them by hand"},
};

}  // namespace
}  // namespace safetensors

bool detect_safetensors(const SourceTree& tree) {
  const auto& entries = tree.entries();
  const bool by_name = std::any_of(entries.begin(), entries.end(), [](const auto& entry) {
    return safetensors::is_top_level(entry.name) &&
           (entry.name.ends_with(safetensors::kSuffix) ||
            entry.name.ends_with(safetensors::kIndexSuffix));
  });
  if (by_name || entries.size() != 1 || entries.front().size < 10) return by_name;
  const auto source = tree.open(entries.front().name);
  if (!source) return false;
  const auto head = read_bytes(**source, 0, 10, 10);
  return head && load_le<std::uint64_t>(*head) < entries.front().size &&
         text_of(*head).substr(8) == "{\"";
}

Result<std::unique_ptr<Checkpoint>> describe_safetensors(std::shared_ptr<const SourceTree> tree) {
  return safetensors::Describer(std::move(tree)).run();
}

ResumeRules safetensors_resume() { return {"a training framework", safetensors::kRules}; }

}  // namespace ebb::formats
