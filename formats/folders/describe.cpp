#include <algorithm>
#include <array>
#include <iterator>
#include <set>

#include "ebb/formats/catalog/key_path.h"
#include "ebb/formats/catalog/known_files.h"
#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/conversion/ties.h"
#include "ebb/formats/core/folder_tree.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/sha256.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/dcp/dcp.h"
#include "ebb/formats/folders/file_names.h"
#include "ebb/formats/folders/fit.h"
#include "ebb/formats/folders/folders.h"
#include "ebb/formats/folders/joined.h"
#include "ebb/formats/folders/layout.h"
#include "ebb/formats/folders/rank_slices.h"
#include "ebb/formats/folders/tied.h"
#include "ebb/formats/folders/trainer_state.h"
#include "ebb/formats/pickle/known_globals.h"
#include "ebb/formats/safetensors/safetensors.h"
#include "ebb/formats/state_dict/names.h"
#include "ebb/formats/state_dict/numbers.h"
#include "ebb/formats/state_dict/small_tensors.h"
#include "ebb/formats/torch/numpy_array.h"
#include "ebb/formats/torch_save/torch_save.h"

namespace ebb::formats {
namespace folders {
namespace {

constexpr std::uint64_t kMostOfAJobsTensor = 64 * KiB;  // random numbers of a GPU or a CPU have 5

bool holds_object(const Value& value) {
  if (is_numpy_array(value)) return false;
  return value.kind == Value::Kind::object || std::ranges::any_of(value.items, holds_object) ||
         std::ranges::any_of(value.entries, [](const auto& entry) {
           return holds_object(entry.first) || holds_object(entry.second);
         });
}

// A tensor among what a job keeps is no parameter: it is a value with the elements.
Result<Value> as_value(const Checkpoint& checkpoint, const TensorEntry& tensor) {
  Value value;
  value.kind = Value::Kind::tensor;
  value.dtype = tensor.dtype;
  value.raw.resize(volume(tensor.shape) * bytes_of(tensor.dtype));
  if (!value.raw.empty()) EBB_TRY(checkpoint.read(tensor, tensor.chunks.front(), 0, value.raw));
  value.text = sha256_hex(value.raw);
  for (const std::uint64_t extent : tensor.shape)
    value.items.push_back(Value::of_int(static_cast<std::int64_t>(extent)));
  return value;
}

bool can_be_value(const TensorEntry& tensor) {
  return tensor.chunks.size() == 1 && bits_of(tensor.dtype) % 8 == 0 &&
         volume(tensor.shape) * bytes_of(tensor.dtype) <= kMostOfAJobsTensor;
}

class Describer {
 public:
  Describer(FolderKind kind, std::shared_ptr<const SourceTree> tree)
      : kind_(kind), tree_(std::move(tree)), whole_(std::make_unique<JoinedCheckpoint>()) {}

  Result<std::unique_ptr<Checkpoint>> run() {
    const std::vector<Part> parts = parts_in(kind_, *tree_);
    catalog().format = name_of(kind_);
    for (const Part& part : parts) {
      auto added = part.bytes == Part::Bytes::json ? add_state(part) : add(part);
      if (!added) return with_way_out(std::move(added).error(), part, parts);
    }
    EBB_TRY(name_all(parts));
    name_unrecognised(parts);
    if (kind_ == FolderKind::trainer) EBB_TRY(add_ties(parts));
    summarize();
    return std::unique_ptr<Checkpoint>(std::move(whole_));
  }

 private:
  Catalog& catalog() { return whole_->building(); }

  // What is damaged hides nothing from whoever names the model alone.
  static Error with_way_out(Error error, const Part& part, const std::vector<Part>& parts) {
    if (part.kind == Part::Kind::model || parts.front().place() == ".metadata") return error;
    error.hint += compose("{}{} beside it, named itself, is read without it",
                          error.hint.empty() ? "" : "; ", printable(parts.front().place()));
    return error;
  }

  Result<> add_state(const Part& part) {
    EBB_TRY_ASSIGN(const auto source, tree_->open(part.files.front()));
    EBB_TRY_ASSIGN(auto values, read_json_state(*source, part.key));
    std::ranges::move(values, std::back_inserter(catalog().values));
    whole_->add_file({part.files.front(), source->size(), std::nullopt});
    return {};
  }

  Result<std::unique_ptr<Checkpoint>> described(const Part& part) const {
    if (part.bytes == Part::Bytes::dcp) return describe_dcp(folder_of(tree_, part.folder));
    const std::string root(tree_->root());
    if (part.bytes == Part::Bytes::safetensors && !part.folder.empty())
      return describe_safetensors(folder_of(tree_, part.folder));
    if (part.bytes == Part::Bytes::safetensors)
      return describe_safetensors(files_of(tree_, part.files, root));
    // One file, named itself, is read whatever it is called.
    const std::string file = compose("{}/{}", root, part.files.front());
    const auto files = files_of(tree_, part.files, part.files.size() == 1 ? file : root);
    if (!detect_torch(*files))
      return Error{Code::corrupt, compose("{}:0: neither a zip archive nor a stream of torch.save: "
                                          "torn, or another file under its name",
                                          printable(file, 1000))};
    return describe_torch(files);
  }

  Result<> add_ranks(const Part& part) {
    std::vector<RankBegin> ranks;
    for (const std::string& file : part.files) {
      ranks.push_back(end_of(catalog()));
      Part one = part;
      one.files = {file};
      EBB_TRY(add(one));
    }
    return join_slices(*whole_, ranks);
  }

  Result<> add(const Part& part) {
    if (part.kind == Part::Kind::optimizer && part.files.size() > 1) return add_ranks(part);
    EBB_TRY_ASSIGN(auto read, described(part));
    const Catalog& its = read->catalog();
    if (catalog().producer.empty() || part.bytes != Part::Bytes::safetensors)
      if (part.kind != Part::Kind::job) catalog().producer = its.producer;
    if (part.kind == Part::Kind::model) take_model(part, its);
    take_notes(part, its);
    const std::size_t tensors = catalog().tensors.size();
    const std::size_t values = catalog().values.size();
    whole_->add(std::move(read), {part.key, part.instead_of, part.folder});
    if (part.bytes == Part::Bytes::safetensors) take_header(part, values);
    if (part.kind != Part::Kind::job) return {};
    EBB_TRY(take_tensors(tensors));
    leave_objects(part, values);
    return {};
  }

  // Of one torch.save file alone it is known that its order is the model's.
  void take_model(const Part& part, const Catalog& its) {
    models_ += 1;
    const bool one_file = part.bytes == Part::Bytes::torch_save && its.files.size() == 1 &&
                          kind_ != FolderKind::nanochat;  // its optimizer goes by shapes
    catalog().listed = one_file && models_ == 1 ? ListOrder::of_the_model : ListOrder::unknown;
    catalog().partition = its.partition;
  }

  // "format": "pt" says who wrote the file; other texts of its header are none of the model's.
  void take_header(const Part& part, std::size_t first) {
    auto& values = catalog().values;
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(first);
    values.erase(std::remove_if(begin, values.end(),
                                [&](const ValueEntry& value) {
                                  return is_word(value.path.back(), "format") &&
                                         value.value.text == "pt";
                                }),
                 values.end());
    for (std::size_t i = first; i < values.size(); ++i) {
      values[i].path.front() = part.key + "_metadata";
      values[i].key = joined(values[i].path);
    }
  }

  // Names and parts are found anew in the whole; of a job's files nothing but their values counts.
  void take_notes(const Part& part, const Catalog& its) {
    if (part.kind == Part::Kind::job) return;
    for (const std::string& note : its.notes) {
      const bool unclear = std::ranges::find(its.parts.unclear, note) != its.parts.unclear.end();
      if (!unclear && !note.starts_with(kInferredNames))
        catalog().notes.push_back(note.starts_with(part.place())
                                      ? note
                                      : compose("{}: {}", printable(part.place()), note));
    }
  }

  Result<> take_tensors(std::size_t first) {
    std::vector<TensorEntry> rest;
    for (std::size_t i = first; i < catalog().tensors.size(); ++i) {
      TensorEntry& tensor = catalog().tensors[i];
      if (!can_be_value(tensor)) {
        rest.push_back(std::move(tensor));
        continue;
      }
      EBB_TRY_ASSIGN(Value value, as_value(*whole_, tensor));
      catalog().values.push_back({*tensor.key, tensor.path, std::move(value)});
    }
    catalog().tensors.resize(first);
    std::ranges::move(rest, std::back_inserter(catalog().tensors));
    return {};
  }

  // Objects of Python's are known by name alone, so no other format can hold them: they stay
  // behind, and that is said. Names that are not known stay, to be refused.
  void leave_objects(const Part& part, std::size_t first) {
    std::set<std::string> names;
    auto& values = catalog().values;
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(first);
    values.erase(std::remove_if(begin, values.end(),
                                [&](const ValueEntry& value) {
                                  const bool left =
                                      holds_object(value.value) && unsafe_part(value.value).empty();
                                  if (left) names.insert(value.key);
                                  return left;
                                }),
                 values.end());
    if (names.empty()) return;
    const std::string& file = part.files.front();
    const auto alike = std::ranges::find_if(catalog().beside, [&](const BesideEntry& entry) {
      return without_numbers(entry.path) == without_numbers(file);
    });
    if (alike != catalog().beside.end()) {
      ++alike->count;
      return;
    }
    catalog().beside.push_back(
        {.path = file,
         .what = compose("{} in it {} of Python's", some_of({names.begin(), names.end()}),
                         names.size() == 1 ? "is an object" : "are objects"),
         .role = BesideEntry::Role::unknown});
  }

  // The parts are known by their files; within them names are found as in any state dict.
  Result<> name_all(const std::vector<Part>& parts) {
    PartsSaid said;
    for (const Part& part : parts) {
      const std::string below = part.key + ".";
      const auto holds = [&](const TensorEntry& tensor) { return tensor.key->starts_with(below); };
      if (part.kind == Part::Kind::model && !part.key.empty() &&
          std::ranges::any_of(catalog().tensors, holds))
        said.models.push_back(part.key);
    }
    std::vector<UnreadEntry> unread = std::move(catalog().unread);
    catalog().unread.clear();
    const std::size_t read = catalog().tensors.size();
    for (const UnreadEntry& entry : unread) catalog().tensors.push_back(as_tensor(entry));
    EBB_TRY(name_contents(catalog(), said, values_in_tensors(*whole_)));
    for (std::size_t i = 0; i < unread.size(); ++i) {
      TensorEntry& named = catalog().tensors[read + i];
      unread[i].name = std::move(named.name);
      unread[i].state = std::move(named.state);
    }
    catalog().tensors.resize(read);
    catalog().unread = std::move(unread);
    return {};
  }

  // A file that is called an optimizer's and holds none is said to be one all the same: whoever
  // converts the folder would start a new optimizer.
  void name_unrecognised(const std::vector<Part>& parts) {
    for (const Part& part : parts) {
      const auto lies_in = [&](const StateDictOptimizer& one) {
        if (part.key.empty()) return true;
        const std::string at = text_of(one.at);
        return at == part.key || at.starts_with(part.key + ".");
      };
      if (part.kind != Part::Kind::optimizer ||
          std::ranges::any_of(catalog().parts.optimizers, lies_in))
        continue;
      catalog().beside.push_back({.path = part.place(),
                                  .what = "called an optimizer's, but none is recognised in it",
                                  .holds_states = true,
                                  .role = BesideEntry::Role::states});
    }
  }

  Result<> add_ties(const std::vector<Part>& parts) {
    auto tied = tied_names(*tree_, catalog());
    if (!tied) return with_way_out(std::move(tied).error(), Part(), parts);
    if (*tied) {
      const std::string key(kTiedKey);
      catalog().values.push_back({key, {key}, std::move(**tied)});
    }
    return {};
  }

  void note_other_saves() {
    std::set<std::string> others;
    const std::string& model = catalog().files.front().name;
    for (const SourceTree::Entry& entry : tree_->entries())
      if (number_between(entry.name, "model_", ".pt") && entry.name != model)
        others.insert(entry.name);
    if (!others.empty())
      catalog().notes.push_back(compose("{}, the newest save here, is read; not {}", model,
                                        some_of({others.begin(), others.end()})));
  }

  void summarize() {
    if (kind_ == FolderKind::nanochat) note_other_saves();
    const std::size_t ranks = ranks_with_files(*tree_);
    catalog().world = std::max(catalog().world, static_cast<std::uint32_t>(ranks));
    if (kind_ > FolderKind::fsdp) return;  // one checkpoint of the trainer's own
    if (const Fit fit = fit_of(catalog()); !fit.fits()) catalog().notes.push_back(fit.why());
  }

  FolderKind kind_;
  std::shared_ptr<const SourceTree> tree_;
  std::unique_ptr<JoinedCheckpoint> whole_;
  std::size_t models_ = 0;
};

}  // namespace
}  // namespace folders

bool detect_folder(FolderKind kind, const SourceTree& tree) {
  return !folders::parts_in(kind, tree).empty();
}

Result<std::unique_ptr<Checkpoint>> describe_folder(FolderKind kind,
                                                    std::shared_ptr<const SourceTree> tree) {
  return folders::Describer(kind, std::move(tree)).run();
}

}  // namespace ebb::formats
