#include <algorithm>
#include <set>

#include "formats/core/json_text.h"
#include "formats/deepspeed/deepspeed.h"
#include "formats/deepspeed/names.h"
#include "formats/deepspeed/optimizer.h"
#include "formats/deepspeed/partition.h"

namespace formats {
namespace {

// Top-level entries of a model file that have a meaning of their own; the rest are values.
constexpr std::string_view kModelParts[] = {"module",
                                            "buffer_names",
                                            "optimizer",
                                            "param_shapes",
                                            "frozen_param_shapes",
                                            "shared_params",
                                            "data_sampler",
                                            "random_ltd",
                                            "frozen_param_fragments",
                                            "sparse_tensor_module_names",
                                            "ds_version",
                                            "universal_checkpoint_info"};

class Describer {
 public:
  explicit Describer(std::shared_ptr<const SourceTree> tree)
      : tree_(tree),
        checkpoint_(std::make_unique<DsCheckpoint>(std::move(tree))),
        partitions_(*checkpoint_) {}

  Result<std::unique_ptr<Checkpoint>> run() {
    TRY_ASSIGN(files_, find_ds_files(*tree_));
    catalog().format = "deepspeed";
    TRY(check_ranks());
    for (const auto& [rank, name] : files_.optimizer) TRY(read_optimizer(Rank{rank}, name));
    for (const auto& [rank, name] : files_.model) TRY(read_model(Rank{rank}, name));
    finish();
    return std::unique_ptr<Checkpoint>(std::move(checkpoint_));
  }

 private:
  struct Opened {
    TorchArchive archive;
    std::uint32_t file = 0;
    std::string where;  // the file's name for messages
    const PickleGraph& graph() const { return archive.graph(); }
  };

  Catalog& catalog() { return checkpoint_->building(); }

  Result<Opened> open(const std::string& name, std::optional<Rank> rank) {
    TRY_ASSIGN(const std::shared_ptr<const ByteSource> source, tree_->open(name));
    TRY_ASSIGN(TorchArchive archive, TorchArchive::open(source, 0, source->size()));
    catalog().files.push_back({name, source->size(), rank});
    return Opened{std::move(archive), static_cast<std::uint32_t>(catalog().files.size() - 1),
                  std::string(source->name())};
  }

  // Before anything else: are all ranks there? The first optimizer file knows how many there were.
  Result<> check_ranks() {
    TRY_ASSIGN(const std::shared_ptr<const ByteSource> source,
               tree_->open(files_.optimizer.begin()->second));
    TRY_ASSIGN(const TorchArchive archive, TorchArchive::open(source, 0, source->size()));
    TRY(require_known_globals(archive.graph()));
    TRY_ASSIGN(world_, ds_partition_count(archive.graph()));
    for (std::uint32_t rank = 0; rank < world_; ++rank)
      if (!files_.optimizer.contains(rank))
        return Error{Code::incomplete,
                     std::string(tree_->root()) + ": " + files_.tag + ": optimizer file of rank " +
                         std::to_string(rank) + " is missing (partition_count is " +
                         std::to_string(world_) + ")",
                     {}};
    if (files_.optimizer.size() > world_)
      return Error{Code::layout,
                   std::string(tree_->root()) + ": " + files_.tag + ": " +
                       std::to_string(files_.optimizer.size()) +
                       " optimizer files, but partition_count is " + std::to_string(world_),
                   {}};
    catalog().world = world_;
    return read_shapes();
  }

  // The first model file says which parameters the flat buffers hold, in which order.
  Result<> read_shapes() {
    TRY_ASSIGN(const std::shared_ptr<const ByteSource> source,
               tree_->open(files_.model.begin()->second));
    TRY_ASSIGN(const TorchArchive archive, TorchArchive::open(source, 0, source->size()));
    const PickleGraph& graph = archive.graph();
    const PickleId shapes = graph.find(graph.root(), "param_shapes");
    if (shapes == kNoPickle || !graph.is(shapes, PickleKind::list))
      return bad(source->name(), "no list param_shapes: not a ZeRO checkpoint");
    for (const PickleId group : graph.items(shapes)) {
      TRY_ASSIGN(std::vector<DsParam> params, named_shapes(graph, group, source->name()));
      shapes_.push_back(std::move(params));
    }
    return {};
  }

  static Error bad(std::string_view where, std::string_view why) {
    return Error{Code::corrupt, std::string(where) + ": " + std::string(why), {}};
  }

  static Result<std::vector<DsParam>> named_shapes(const PickleGraph& graph, PickleId dict,
                                                   std::string_view where) {
    if (!graph.is(dict, PickleKind::dict)) return bad(where, "a group of shapes that is no dict");
    std::vector<DsParam> params;
    std::set<std::string_view> seen;
    const std::span<const PickleId> entries = graph.items(dict);
    for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
      const auto shape = torch_shape(graph, entries[i + 1]);
      if (!graph.is(entries[i], PickleKind::string) || graph.text(entries[i]).empty() || !shape)
        return bad(where, "a parameter without a name or a shape");
      const std::string_view name = graph.text(entries[i]);
      if (!seen.insert(name).second)
        return bad(where, "parameter " + json_string(name) + " is listed twice");
      params.push_back({std::string(name), *shape});
    }
    return params;
  }

  Result<> read_optimizer(Rank rank, const std::string& name) {
    TRY_ASSIGN(const Opened opened, open(name, rank));
    TRY(require_known_globals(opened.graph()));
    const DsRankFile file{*tree_,        opened.archive, opened.file, opened.where,
                          files_.folder, rank,           world_};
    DsOptimizer optimizer(file, shapes_, *checkpoint_, partitions_);
    TRY(optimizer.read());
    if (rank == Rank{0}) {
      stage_ = optimizer.stage();
      catalog().groups = optimizer.groups();
    }
    for (ValueEntry& value : optimizer.take_values())
      if (rank == Rank{0}) catalog().values.push_back(std::move(value));
    return {};
  }

  Result<> read_model(Rank rank, const std::string& name) {
    TRY_ASSIGN(const Opened opened,
               open(name, files_.model.size() > 1 ? std::optional<Rank>(rank) : std::nullopt));
    const PickleGraph& graph = opened.graph();
    if (!graph.is(graph.root(), PickleKind::dict)) return bad(opened.where, "no dict at the top");
    TRY(read_frozen(opened, rank));
    if (rank != Rank{0}) return {};
    const PickleId version = graph.find(graph.root(), "ds_version");
    catalog().producer = "DeepSpeed";
    if (version != kNoPickle && graph.is(version, PickleKind::string))
      catalog().producer += " " + std::string(graph.text(version));
    const PickleId steps = graph.find(graph.root(), "global_steps");
    if (steps != kNoPickle && graph.is(steps, PickleKind::integer))
      catalog().step = graph.integer(steps);
    note_tied(graph);
    TRY(read_module(opened));
    return read_values(opened);
  }

  void note_tied(const PickleGraph& graph) {
    const PickleId shared = graph.find(graph.root(), "shared_params");
    if (shared == kNoPickle || !graph.is(shared, PickleKind::dict)) return;
    const std::span<const PickleId> entries = graph.items(shared);
    for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
      if (!graph.is(entries[i], PickleKind::string) ||
          !graph.is(entries[i + 1], PickleKind::string))
        continue;
      tied_.emplace(graph.text(entries[i]));
      catalog().notes.push_back(json_string(graph.text(entries[i])) + " is tied to " +
                                json_string(graph.text(entries[i + 1])));
    }
  }

  // Stage 3 cuts frozen parameters over the ranks like the others; stages 1 and 2 keep them in
  // module.
  Result<> read_frozen(const Opened& opened, Rank rank) {
    const PickleGraph& graph = opened.graph();
    const PickleId shapes = graph.find(graph.root(), "frozen_param_shapes");
    const PickleId parts = graph.find(graph.root(), "frozen_param_fragments");
    if (stage_ != 3 || shapes == kNoPickle || parts == kNoPickle ||
        !graph.is(shapes, PickleKind::dict))
      return {};
    TRY_ASSIGN(const std::vector<DsParam> params, named_shapes(graph, shapes, opened.where));
    for (const DsParam& param : params) {
      const PickleId part = graph.find(parts, param.name);
      if (part == kNoPickle)
        return bad(opened.where,
                   "frozen parameter " + json_string(param.name) + " has no fragment");
      TRY_ASSIGN(const TorchTensor tensor, torch_tensor(graph, part));
      TRY_ASSIGN(const DsFlat flat, checkpoint_->add_flat(opened.archive, opened.file, tensor));
      TRY_ASSIGN(const DsGroup group, DsGroup::make({param}, Policy::zero3, world_));
      TRY(partitions_.add(group, "param", rank, flat, opened.where));
    }
    return {};
  }

  // Whole tensors: 16-bit weights and frozen parameters of stages 1 and 2, buffers of all stages.
  Result<> read_module(const Opened& opened) {
    const PickleGraph& graph = opened.graph();
    const PickleId module = graph.find(graph.root(), "module");
    if (module == kNoPickle || !graph.is(module, PickleKind::dict))
      return bad(opened.where, "no dict module");
    std::set<std::string_view> buffers;
    const PickleId names = graph.find(graph.root(), "buffer_names");
    if (names != kNoPickle && graph.is(names, PickleKind::list))
      for (const PickleId name : graph.items(names))
        if (graph.is(name, PickleKind::string)) buffers.insert(graph.text(name));
    const std::span<const PickleId> entries = graph.items(module);
    for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
      if (!graph.is(entries[i], PickleKind::string) || !is_torch_tensor(graph, entries[i + 1]))
        continue;
      const std::string name(graph.text(entries[i]));
      const bool buffer = buffers.contains(name);
      TRY_ASSIGN(const TorchTensor tensor, torch_tensor(graph, entries[i + 1]));
      const bool placeholder = stage_ == 3 && !buffer;
      if (placeholder || tied_.contains(name)) continue;
      TRY_ASSIGN(const DsFlat flat, checkpoint_->add_flat(opened.archive, opened.file, tensor));
      TRY(partitions_.add_module(name, buffer ? "buffer" : "param", Rank{0}, flat, opened.where));
    }
    return {};
  }

  Result<> read_values(const Opened& opened) {
    const PickleGraph& graph = opened.graph();
    const std::span<const PickleId> entries = graph.items(graph.root());
    for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
      if (!graph.is(entries[i], PickleKind::string)) continue;
      const std::string key(graph.text(entries[i]));
      if (std::find(std::begin(kModelParts), std::end(kModelParts), key) != std::end(kModelParts))
        continue;
      TRY_ASSIGN(Value value, value_of(graph, entries[i + 1], &opened.archive));
      catalog().values.push_back({key, {key}, std::move(value)});
    }
    return {};
  }

  void finish() {
    checkpoint_->finish();
    catalog().partition = std::string(stage_ == 3 ? "zero3" : "zero12") + " over " +
                          std::to_string(world_) + (world_ == 1 ? " rank" : " ranks") +
                          (stage_ == 3 ? "" : " (stage " + std::to_string(stage_) + ")");
    if (stage_ == 3)
      catalog().notes.emplace_back(
          "stage 3 keeps no 16-bit weights: they are the master weights, rounded");
  }

  std::shared_ptr<const SourceTree> tree_;
  std::unique_ptr<DsCheckpoint> checkpoint_;
  DsPartitions partitions_;
  DsFiles files_;
  std::uint32_t world_ = 1;
  std::int64_t stage_ = 0;
  std::vector<std::vector<DsParam>> shapes_;  // a group each, in flat order
  std::set<std::string> tied_;
};

}  // namespace

bool detect_deepspeed(const SourceTree& tree) {
  return std::any_of(tree.entries().begin(), tree.entries().end(), [](const auto& entry) {
    return parse_ds_name(std::string_view(entry.name).substr(entry.name.rfind('/') + 1))
        .has_value();
  });
}

Result<std::unique_ptr<Checkpoint>> describe_deepspeed(std::shared_ptr<const SourceTree> tree) {
  return Describer(std::move(tree)).run();
}

}  // namespace formats
