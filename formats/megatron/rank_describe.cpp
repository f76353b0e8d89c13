// --ckpt-format torch of Megatron-LM: what each rank of tensor and pipeline parallelism has in
// files of its own, as one checkpoint under the keys of torch_dist. Source: Megatron-LM
// (megatron/training/checkpointing.py), megatron-core 0.19.2, and runs of it:
// docs/formats/megatron.md.
#include <algorithm>
#include <map>
#include <set>

#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/core/folder_tree.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/megatron/common_state.h"
#include "ebb/formats/megatron/folder.h"
#include "ebb/formats/megatron/megatron.h"
#include "ebb/formats/megatron/optimizers.h"
#include "ebb/formats/megatron/rank_states.h"
#include "ebb/formats/megatron/run_args.h"

namespace ebb::formats::megatron {
namespace {

constexpr std::string_view kRandom = "rng_state";
constexpr std::string_view kArguments = "args";

bool is_model_key(std::string_view key) {
  constexpr std::string_view kModel = "model";
  if (!key.starts_with(kModel)) return false;
  key.remove_prefix(kModel.size());
  return key.find_first_not_of("0123456789") == std::string_view::npos;
}

// A part of a sharded object, as torch_dist keeps it: what one rank has, in a list.
Value object_of(Value value) {
  std::vector<Value> items;
  items.push_back(std::move(value));
  return Value::of_list(std::move(items));
}

class RankReader {
 public:
  explicit RankReader(std::shared_ptr<const SourceTree> tree)
      : tree_(std::move(tree)), checkpoint_(std::make_unique<torch_save::FileCheckpoint>(tree_)) {}

  Result<std::unique_ptr<Checkpoint>> run(const std::string& folder) {
    EBB_TRY_ASSIGN(RankGrid grid, open_rank_files(*tree_, *checkpoint_, unknown_));
    catalog().producer = grid.files.front().file.producer();
    EBB_TRY_ASSIGN(const RankModel model, RankModel::of(grid));
    WholeTensors tensors(*checkpoint_, grid.tensor);
    EBB_TRY(add_weights(grid, model, tensors));
    const RankSource source{*tree_, *checkpoint_, unknown_, grid, model, tensors};
    EBB_TRY_ASSIGN(const bool buffers, read_buffers(source));
    EBB_TRY_ASSIGN(const NumberedFound numbered, read_numbered(source));
    if (!buffers && !numbered.any) leave_missing_states(source);
    checkpoint_->finish();
    EBB_TRY(tensors.prove_whole());
    leave_unread(catalog(), tensors.unread());
    EBB_TRY(add_values(grid, buffers, numbered));
    if (!folder.empty())
      catalog().values.push_back({"folder", {"folder"}, Value::of_string(folder), true});
    say_what_it_is(grid, folder);
    unknown_.show_in(catalog());
    return std::unique_ptr<Checkpoint>(std::move(checkpoint_));
  }

 private:
  Catalog& catalog() { return checkpoint_->building(); }

  Result<> add_weights(RankGrid& grid, const RankModel& model, WholeTensors& tensors) {
    for (RankFile& rank : grid.files)
      for (std::size_t chunk = 0; chunk < rank.chunks.size(); ++chunk) {
        for (const LocalTensor& tensor : rank.chunks[chunk].tensors) {
          const WholePlace place = model.place_of(rank.at, chunk, tensor);
          if (const auto* form = std::get_if<UnreadForm>(&tensor.tensor))
            tensors.leave(place, {}, *form);
          else
            EBB_TRY(tensors.add(place, {}, rank.file, rank.at, *tensor.read()));
        }
        EBB_TRY(add_others(rank, model, chunk));
      }
    return {};
  }

  // Modules keep states of their own, None most of them: objects of torch_dist, which has none of
  // the output layer's.
  Result<> add_others(const RankFile& rank, const RankModel& model, std::size_t chunk) {
    for (const auto& [key, id] : rank.chunks[chunk].others) {
      if (key == "output_layer._extra_state" && rank.file.graph().is(id, PickleKind::none))
        continue;
      const WholePlace place = model.place_of_key(rank.at, chunk, key);
      const std::string name =
          place.layer ? compose("{}/shard_{}_{}", place.name, *place.layer, place.layers)
                      : compose("{}/shard_0_1", place.name);
      EBB_TRY_ASSIGN(ReadablePart part, rank.file.value_at(id));
      for (UnreadInside& inside : part.unread)
        catalog().unread.push_back(entry_of(std::move(inside), {name}));
      if (part.value) add_once(name, object_of(*std::move(part.value)));
    }
    return {};
  }

  // Values of the first rank; others that are not the same are said.
  void add_once(const std::string& key, Value value) {
    const auto [at, fresh] = values_.emplace(key, to_json(value));
    if (fresh)
      catalog().values.push_back({key, {key}, std::move(value)});
    else if (at->second != to_json(value))
      differing_.insert(key);
  }

  // What all ranks have alike becomes the common state of torch_dist, what each has of its own an
  // object.
  Result<> add_values(const RankGrid& grid, bool buffers, const NumberedFound& numbered) {
    Value common = Value::of_dict();
    if (numbered.optimizer) common.add(kOptimizer, *numbered.optimizer);
    const bool groups = !numbered.optimizer && (buffers || numbered.any);
    for (const RankFile& rank : grid.files) {
      const PickleGraph& graph = rank.file.graph();
      const std::span<const PickleId> entries = graph.items(graph.root());
      for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
        if (!graph.is(entries[i], PickleKind::string)) continue;
        const std::string key(graph.text(entries[i]));
        if (is_model_key(key) || (key == kOptimizer && !groups)) continue;
        if (key == kArguments && &rank != &grid.files.front()) continue;  // names the rank
        EBB_TRY(add_value(grid, rank, key, entries[i + 1], common));
      }
    }
    add_common_state(catalog(), common);
    for (const auto& [name, steps] : numbered.steps) catalog().param_steps[name] = steps;
    settle();
    return {};
  }

  Result<> add_value(const RankGrid& grid, const RankFile& rank, const std::string& key,
                     PickleId id, Value& common) {
    Value value;
    if (key == kOptimizer) {
      EBB_TRY_ASSIGN(value, optimizer_value(rank.file, id));
    } else {
      EBB_TRY_ASSIGN(ReadablePart part, rank.file.value_at(id));
      for (UnreadInside& inside : part.unread)
        catalog().unread.push_back(entry_of(std::move(inside), {key}));
      value = part.value.value_or(Value());
    }
    if (key == kRandom) {
      const std::string name = compose("{}/shard_{}.{}_{}.{}", key, rank.at.pipeline,
                                       rank.at.tensor, grid.pipeline, grid.tensor);
      catalog().values.push_back({name, {name}, object_of(std::move(value))});
      return {};
    }
    const auto [at, fresh] = values_.emplace(key, to_json(value));
    if (fresh) {
      common.add(key, std::move(value));
    } else if (at->second != to_json(value)) {
      if (key == kIteration)
        return Error{
            Code::layout,
            compose("{}: of iteration {}, where {} says {} (files of two saves)", rank.file.where(),
                    to_json(value), grid.files.front().file.where(), at->second),
            "bring together the files that one save wrote"};
      differing_.insert(key);
    }
    return {};
  }

  // The groups say what the optimizer's value did; the rest lies under its own key, as another
  // format's: written as torch_dist, it is laid out anew. The keys of tensors were torch_dist's, by
  // which groups find them; these files have none for a whole tensor.
  void settle() {
    for (TensorEntry& tensor : catalog().tensors) tensor.key.reset();
    std::erase_if(catalog().values, [](const ValueEntry& entry) {
      return entry.key == kOptimizer && entry.path.size() == 2;
    });
    for (ValueEntry& entry : catalog().values)
      if (entry.path.size() > 1 && entry.path.front() == PathItem("common"))
        entry.path = {entry.key};
  }

  void say_what_it_is(const RankGrid& grid, const std::string& folder) {
    catalog().format = "megatron-torch";
    catalog().world = grid.tensor * grid.pipeline;
    catalog().partition = compose("a folder for each of {}", plural(catalog().world, "rank"));
    if (grid.tensor > 1) catalog().partition += compose(", tensor parallel {}", grid.tensor);
    if (grid.pipeline > 1) catalog().partition += compose(", pipeline parallel {}", grid.pipeline);
    if (!folder.empty())
      for (FileEntry& file : catalog().files) file.name.insert(0, folder + "/");
    if (!differing_.empty())
      catalog().notes.push_back(
          compose("{} not the same in the files of all ranks, the first one's is shown: {}",
                  plural(differing_.size(), "value") + (differing_.size() == 1 ? " is" : " are"),
                  some_of({differing_.begin(), differing_.end()})));
    if (std::string differ = iterations_that_differ(catalog()); !differ.empty())
      catalog().notes.push_back(std::move(differ));
    if (std::string padded = padding_note(catalog()); !padded.empty())
      catalog().notes.push_back(std::move(padded));
  }

  std::shared_ptr<const SourceTree> tree_;
  std::unique_ptr<torch_save::FileCheckpoint> checkpoint_;
  UnknownNames unknown_;
  std::map<std::string, std::string> values_;  // as JSON, by key
  std::set<std::string> differing_;            // keys of values
};

}  // namespace
}  // namespace ebb::formats::megatron

namespace ebb::formats {

bool detect_megatron_ranks(const SourceTree& tree) {
  return megatron::look_for_place(tree).kind == megatron::Kind::by_rank;
}

Result<std::unique_ptr<Checkpoint>> describe_megatron_ranks(
    std::shared_ptr<const SourceTree> tree) {
  EBB_TRY_ASSIGN(const megatron::Place place, megatron::find_place(*tree));
  return megatron::RankReader(folder_of(std::move(tree), place.folder)).run(place.folder);
}

}  // namespace ebb::formats
