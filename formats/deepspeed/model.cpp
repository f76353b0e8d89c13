#include "ebb/formats/deepspeed/model.h"

#include <algorithm>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/deepspeed/config.h"
#include "ebb/formats/deepspeed/names.h"
#include "ebb/formats/torch/unread.h"

namespace ebb::formats::deepspeed {
namespace {

constexpr std::size_t kMaxGroups = 4096;
constexpr std::uint64_t kMaxElems = std::uint64_t{1} << 56;  // of one group

// `seen` holds the names of all groups: a parameter is in one of them.
Result<Group> named_shapes(const PickleGraph& graph, PickleId dict, std::string_view where,
                           std::set<std::string_view>& seen) {
  if (!graph.is(dict, PickleKind::dict)) return corrupt(where, "a group of shapes that is no dict");
  Group params;
  std::uint64_t total = 0;
  const std::span<const PickleId> entries = graph.items(dict);
  for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
    const auto shape = torch_shape(graph, entries[i + 1]);
    if (!graph.is(entries[i], PickleKind::string) || graph.text(entries[i]).empty() || !shape)
      return corrupt(where, "a parameter without a name or a shape");
    const std::string_view name = graph.text(entries[i]);
    if (!seen.insert(name).second)
      return corrupt(where, "parameter " + json_string(name) + " is listed twice");
    const auto elems = checked_volume(*shape);
    if (!elems || *elems > kMaxElems - total)
      return corrupt(where, compose("parameter {} of shape {} is larger than any file",
                                    json_string(name), to_string(*shape)));
    total += *elems;
    params.push_back({std::string(name), *shape});
  }
  return params;
}

// torch.save calls an archive as its file. Where a rank's partitions were another rank's, or a
// state of a universal checkpoint's parameter another state of it, somebody has moved them; nothing
// else in them says whose they are.
Result<> check_not_moved(const SourceTree& tree, const std::string& name,
                         const TorchArchive& archive) {
  const std::string folder(folder_of(name));
  const std::string file = name.substr(folder.size());
  const std::string written_as = archive.zip().folder() + ".pt";
  const auto its = parse_name(file), said = parse_name(written_as);
  const bool of_another_rank =
      its && its->kind == FileName::Kind::optimizer && said && said->kind == its->kind &&
      (said->data_rank != its->data_rank || said->model_rank != its->model_rank);
  const bool another_state =
      !its && written_as != file && tree.find(folder + written_as) != nullptr;
  if (!of_another_rank && !another_state) return {};
  Error error = refused(
      tree, Code::layout,
      compose("{}: written as {}: {}", name, written_as,
              of_another_rank ? "the file of another rank" : "another state of the parameter"),
      "give the files the names back that they were written under");
  error.place.file = name;
  return error;
}

}  // namespace

std::optional<std::int64_t> integer_at(const PickleGraph& graph, PickleId dict,
                                       std::string_view key) {
  const PickleId id = graph.find(dict, key);
  if (id == kNoPickle || !graph.is(id, PickleKind::integer)) return std::nullopt;
  return graph.integer(id);
}

bool has_no_module(const PickleGraph& graph) {
  const PickleId module = graph.find(graph.root(), "module");
  return module != kNoPickle && graph.is(module, PickleKind::none);
}

Error corrupt(std::string_view where, std::string_view why) {
  return Error{Code::corrupt, compose("{}: {}", where, why)};
}

Result<TorchArchive> opened(const SourceTree& tree, ZeroCheckpoint& checkpoint,
                            const std::string& name) {
  EBB_TRY_ASSIGN(const std::shared_ptr<const ByteSource> source, tree.open(name));
  EBB_TRY_ASSIGN(TorchArchive archive, TorchArchive::open(source, 0, source->size()));
  EBB_TRY(check_not_moved(tree, name, archive));
  checkpoint.unknown.look_at(archive.graph(), name);
  return archive;
}

Result<std::unique_ptr<Checkpoint>> end_of_description(std::unique_ptr<ZeroCheckpoint> checkpoint,
                                                       const Result<>& read) {
  if (!read) {
    if (read.error().code == Code::corrupt) EBB_TRY(checkpoint->unknown.refuse());
    return read.error();
  }
  checkpoint->unknown.show_in(checkpoint->building());
  return std::unique_ptr<Checkpoint>(std::move(checkpoint));
}

Result<File> open_archive(const SourceTree& tree, ZeroCheckpoint& checkpoint,
                          const std::string& name, std::optional<Rank> rank) {
  EBB_TRY_ASSIGN(TorchArchive archive, opened(tree, checkpoint, name));
  return add_archive(std::move(archive), checkpoint, name, rank);
}

File add_archive(TorchArchive archive, ZeroCheckpoint& checkpoint, const std::string& name,
                 std::optional<Rank> rank) {
  std::vector<FileEntry>& files = checkpoint.building().files;
  files.push_back({name, archive.length(), rank});
  std::string where(archive.zip().source().name());
  return File{std::move(archive), static_cast<std::uint32_t>(files.size() - 1), std::move(where)};
}

Result<std::vector<Group>> shapes_of(const PickleGraph& graph, std::string_view where) {
  const PickleId shapes = graph.find(graph.root(), "param_shapes");
  if (shapes != kNoPickle && graph.is(shapes, PickleKind::none))
    return Error{
        Code::unsupported,
        compose("{}: param_shapes is None: BF16_Optimizer without ZeRO (stage 0), which is "
                "not read by this version",
                where),
        "load it in a job that is cut the same way and save it with "
        "zero_optimization.stage 1"};
  if (shapes == kNoPickle || !graph.is(shapes, PickleKind::list))
    return corrupt(where, "no list param_shapes: not a ZeRO checkpoint");
  if (graph.items(shapes).size() > kMaxGroups)
    return Error{Code::limit, compose("{}: param_shapes has {} groups; the limit is {}", where,
                                      graph.items(shapes).size(), kMaxGroups)};
  std::vector<Group> groups;
  std::set<std::string_view> seen;
  for (const PickleId group : graph.items(shapes)) {
    EBB_TRY_ASSIGN(Group params, named_shapes(graph, group, where, seen));
    groups.push_back(std::move(params));
  }
  return groups;
}

Result<> ModelReader::read(const File& file, Rank rank) {
  const PickleGraph& graph = file.graph();
  if (!graph.is(graph.root(), PickleKind::dict)) return corrupt(file.where, "no dict at the top");
  EBB_TRY(read_frozen(file, rank));
  if (rank != Rank{0}) return check_same_save(file);
  EBB_TRY(read_facts(file));
  return read_module(file);
}

Result<> ModelReader::read_of_model_rank(const File& file, Rank rank) {
  const PickleGraph& graph = file.graph();
  if (!graph.is(graph.root(), PickleKind::dict)) return corrupt(file.where, "no dict at the top");
  EBB_TRY(read_frozen(file, rank));
  EBB_TRY(check_same_save(file));
  if (rank != Rank{0}) return {};
  read_tied(graph);
  return read_module(file);
}

Result<> ModelReader::read_other_part(const File& file) {
  EBB_TRY(check_same_save(file));
  read_tied(file.graph());
  return {};
}

Result<> ModelReader::check_same_save(const File& file) {
  const auto steps = integer_at(file.graph(), file.graph().root(), "global_steps");
  if (!steps || !facts_.global_steps || *steps == *facts_.global_steps) return {};
  return Error{
      Code::layout,
      compose("{}: global_steps is {}, in the file of rank 0 it is {} (file of another save)",
              file.where, *steps, *facts_.global_steps)};
}

void ModelReader::read_tied(const PickleGraph& graph) {
  const PickleId shared = graph.find(graph.root(), "shared_params");
  if (shared == kNoPickle || !graph.is(shared, PickleKind::dict)) return;
  const std::span<const PickleId> entries = graph.items(shared);
  for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
    if (!graph.is(entries[i], PickleKind::string) || !graph.is(entries[i + 1], PickleKind::string))
      continue;
    tie(std::string(graph.text(entries[i])), std::string(graph.text(entries[i + 1])));
  }
}

void ModelReader::tie(const std::string& alias, const std::string& owner) {
  if (facts_.tied.emplace(alias, owner).second)
    checkpoint_.building().notes.push_back(json_string(alias) + " is tied to " +
                                           json_string(owner));
}

Result<std::vector<std::pair<std::string, PickleId>>> tensors_at_the_top(const File& file) {
  const PickleGraph& graph = file.graph();
  if (!graph.is(graph.root(), PickleKind::dict)) return corrupt(file.where, "no dict at the top");
  std::vector<std::pair<std::string, PickleId>> tensors;
  const std::span<const PickleId> entries = graph.items(graph.root());
  for (std::size_t i = 0; i + 1 < entries.size(); i += 2)
    if (graph.is(entries[i], PickleKind::string) && is_torch_tensor(graph, entries[i + 1]))
      tensors.emplace_back(graph.text(entries[i]), entries[i + 1]);
  return tensors;
}

bool leave_unread(ZeroCheckpoint& checkpoint, const PickleGraph& graph, PickleId tensor,
                  const std::string& name, const std::string& state) {
  const auto form = unread_form(graph, tensor);
  if (!form) return false;
  checkpoint.building().unread.push_back(
      {"module." + name, {}, name, state, form->what, form->hint});
  return true;
}

bool ModelReader::leave_unread(const PickleGraph& graph, PickleId tensor, const std::string& name,
                               const std::string& state) {
  if (!deepspeed::leave_unread(checkpoint_, graph, tensor, name, state)) return false;
  unread_.insert(name);
  return true;
}

// Stage 3 cuts frozen parameters over the ranks like the others; stages 1 and 2 keep them in
// module.
Result<> ModelReader::read_frozen(const File& file, Rank rank) {
  const PickleGraph& graph = file.graph();
  const PickleId shapes = graph.find(graph.root(), "frozen_param_shapes");
  const PickleId parts = graph.find(graph.root(), "frozen_param_fragments");
  if (stage_ != 3 || shapes == kNoPickle || parts == kNoPickle ||
      !graph.is(shapes, PickleKind::dict))
    return {};
  std::set<std::string_view> seen;
  EBB_TRY_ASSIGN(const Group params, named_shapes(graph, shapes, file.where, seen));
  std::map<std::string_view, PickleId> fragments;
  const std::span<const PickleId> entries =
      graph.is(parts, PickleKind::dict) ? graph.items(parts) : std::span<const PickleId>{};
  for (std::size_t i = 0; i + 1 < entries.size(); i += 2)
    if (graph.is(entries[i], PickleKind::string))
      fragments.emplace(graph.text(entries[i]), entries[i + 1]);
  for (const Param& param : params) {
    const auto part = fragments.find(param.name);
    if (part == fragments.end())
      return corrupt(file.where,
                     "frozen parameter " + json_string(param.name) + " has no fragment");
    const bool unread = rank == Rank{0} ? leave_unread(graph, part->second, param.name, "param")
                                        : unread_.contains(param.name);
    if (unread) continue;
    EBB_TRY_ASSIGN(const TorchTensor tensor, torch_tensor(graph, part->second));
    EBB_TRY_ASSIGN(const Flat flat, checkpoint_.add_flat(file.archive, file.file, tensor));
    const Group group = {param};
    EBB_TRY_ASSIGN(const Cut cut, cut_each(group, rank, world_));
    EBB_TRY(partitions_.add(group, cut, "param", rank, flat, file.where));
  }
  return {};
}

// Whole tensors: 16-bit weights and frozen parameters of stages 1 and 2, buffers of all stages.
Result<> ModelReader::read_module(const File& file) {
  const PickleGraph& graph = file.graph();
  const PickleId names = graph.find(graph.root(), kBufferNames);
  if (names != kNoPickle && graph.is(names, PickleKind::list))
    for (const PickleId name : graph.items(names))
      if (graph.is(name, PickleKind::string)) buffers_.emplace(graph.text(name));
  if (has_no_module(graph)) return {};
  const PickleId module = graph.find(graph.root(), "module");
  if (module == kNoPickle || !graph.is(module, PickleKind::dict))
    return corrupt(file.where, "no dict module");
  // Of stage 0 no list of shared parameters tells, but their storages do.
  std::map<std::pair<std::uint64_t, Shape>, std::string> owners;
  const std::span<const PickleId> entries = graph.items(module);
  for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
    if (!graph.is(entries[i], PickleKind::string) || !is_torch_tensor(graph, entries[i + 1]))
      continue;
    const std::string name(graph.text(entries[i]));
    const bool buffer = buffers_.contains(name);
    const bool placeholder = stage_ == 3 && !buffer;
    const std::string state = buffer ? "buffer" : "param";
    if (placeholder || facts_.tied.contains(name) ||
        leave_unread(graph, entries[i + 1], name, state))
      continue;
    EBB_TRY_ASSIGN(const TorchTensor tensor, torch_tensor(graph, entries[i + 1]));
    EBB_TRY_ASSIGN(const Flat flat, checkpoint_.add_flat(file.archive, file.file, tensor));
    if (stage_ == 0 && flat.elems > 0) {
      const auto [place, fresh] = owners.try_emplace({flat.at, flat.shape}, name);
      if (!fresh) tie(name, place->second);
      if (!fresh) continue;
    }
    EBB_TRY(partitions_.add_module(name, state, flat, file.where));
  }
  return {};
}

Result<> ModelReader::read_facts(const File& file) {
  const PickleGraph& graph = file.graph();
  read_tied(graph);
  const PickleId version = graph.find(graph.root(), "ds_version");
  if (version != kNoPickle && graph.is(version, PickleKind::string))
    facts_.version = graph.text(version);
  facts_.global_steps = integer_at(graph, graph.root(), "global_steps");
  const PickleId ranks = graph.find(graph.root(), "dp_world_size");
  facts_.ranks = integer_at(graph, graph.root(), "dp_world_size");
  if (ranks != kNoPickle && (!facts_.ranks || *facts_.ranks < 1))
    return corrupt(file.where, "dp_world_size is no number of ranks");
  const std::span<const PickleId> entries = graph.items(graph.root());
  for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
    if (!graph.is(entries[i], PickleKind::string)) continue;
    const std::string key(graph.text(entries[i]));
    if (is_a_files_own(key)) continue;
    EBB_TRY_ASSIGN(ReadablePart part, readable_part_of(graph, entries[i + 1], file.archive));
    for (UnreadInside& inside : part.unread)
      checkpoint_.building().unread.push_back(entry_of(std::move(inside), {key}));
    auto& kind = one_of(kEngineKeys, key) ? facts_.engine : facts_.client;
    if (part.value) kind.push_back({key, {key}, std::move(*part.value)});
  }
  return {};
}

}  // namespace ebb::formats::deepspeed
