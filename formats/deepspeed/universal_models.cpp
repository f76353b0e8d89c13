#include "ebb/formats/deepspeed/universal_models.h"

#include <algorithm>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/deepspeed/config.h"

namespace ebb::formats::deepspeed {
namespace {

// "mp_rank_01".
std::string called(std::size_t model_rank) { return "mp_rank_" + zero_padded(model_rank, 2); }

Error no_model_of(const SourceTree& tree, std::string_view folder, std::size_t model_rank,
                  std::size_t ranks) {
  return refused(tree, Code::incomplete,
                 compose("{}: model file of {} is missing; {} ranks of tensor or pipeline "
                         "parallelism have one each",
                         tag_of(tree, folder), called(model_rank), ranks));
}

// The names below `key`, a dict by name or a list of names.
std::set<std::string> names_in(const PickleGraph& graph, std::string_view key) {
  std::set<std::string> names;
  const PickleId id = graph.find(graph.root(), key);
  const bool dict = id != kNoPickle && graph.is(id, PickleKind::dict);
  if (!dict && (id == kNoPickle || !graph.is(id, PickleKind::list))) return names;
  const std::span<const PickleId> items = graph.items(id);
  for (std::size_t i = 0; i < items.size(); i += dict ? 2 : 1)
    if (graph.is(items[i], PickleKind::string)) names.emplace(graph.text(items[i]));
  return names;
}

}  // namespace

Result<UniversalModels> find_universal_models(const SourceTree& tree, const std::string& folder) {
  UniversalModels models;
  std::map<std::uint32_t, std::string> others;
  for (const SourceTree::Entry& entry : tree.entries()) {
    if (folder_of(entry.name) != folder) continue;
    const auto name = parse_name(std::string_view(entry.name).substr(folder.size()));
    if (!name || name->kind != FileName::Kind::model) continue;
    if (name->model_rank != 0) {
      others.emplace(name->model_rank, entry.name);
    } else if (name->data_rank && !models.one_for_all) {
      models.first.emplace(*name->data_rank, entry.name);
    } else if (!name->data_rank) {
      models.first = {{0, entry.name}};
      models.one_for_all = true;
    }
  }
  if (models.first.empty() || models.first.begin()->first != 0)
    return refused(tree, Code::incomplete,
                   tag_of(tree, folder) + ": model file of rank 0 is missing");
  for (auto& [rank, name] : others) {
    if (rank != models.others.size() + 1)
      return no_model_of(tree, folder, models.others.size() + 1, others.rbegin()->first + 1);
    models.others.push_back(std::move(name));
  }
  return models;
}

Result<> check_model_ranks(const UniversalModels& models, const File& first, const SourceTree& tree,
                           const std::string& folder) {
  const PickleGraph& graph = first.graph();
  const PickleId count = graph.find(graph.root(), "mp_world_size");
  const std::size_t found = models.others.size() + 1;
  if (count == kNoPickle || !graph.is(count, PickleKind::integer) ||
      graph.integer(count) <= static_cast<std::int64_t>(found))
    return {};
  return no_model_of(tree, folder, found, static_cast<std::size_t>(graph.integer(count)));
}

void join_shapes(std::vector<Group>& groups, std::vector<Group> more) {
  std::set<std::string> known;
  for (const Group& group : groups)
    for (const Param& param : group) known.insert(param.name);
  groups.resize(std::max(groups.size(), more.size()));
  for (std::size_t i = 0; i < more.size(); ++i)
    for (Param& param : more[i])
      if (!known.contains(param.name)) groups[i].push_back(std::move(param));
}

void add_unread_parts(const PickleGraph& graph, std::set<std::string>& known, Catalog& catalog) {
  const std::set<std::string> buffers = names_in(graph, kBufferNames);
  const PickleId module = graph.find(graph.root(), "module");
  std::set<std::string> names = names_in(graph, "module");
  std::erase_if(names, [&](const std::string& name) {
    return !is_torch_tensor(graph, graph.find(module, name));
  });
  names.merge(names_in(graph, "frozen_param_shapes"));
  for (const std::string& name : names) {
    if (!known.insert(name).second) continue;
    catalog.unread.push_back(
        {"module." + name,
         {},
         name,
         buffers.contains(name) ? "buffer" : "param",
         "a tensor of one model-parallel rank: a part or a copy, nothing records which",
         "take it from the weights that the run exported"});
  }
}

}  // namespace ebb::formats::deepspeed
