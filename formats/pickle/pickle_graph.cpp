#include <algorithm>
#include <array>
#include <bit>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/refuse.h"
#include "ebb/formats/pickle/pickle.h"

namespace ebb::formats {

std::string_view name_of(PickleKind kind) {
  constexpr std::array<std::string_view, 14> kNames = {
      "None",  "bool", "int",  "int", "float",       "str",    "bytes",
      "tuple", "list", "dict", "set", "global name", "object", "persistent id"};
  return kNames[static_cast<std::size_t>(kind)];
}

double PickleGraph::real(PickleId id) const {
  return std::bit_cast<double>(node(id, PickleKind::real).n);
}

std::optional<std::uint64_t> PickleGraph::offset(PickleId id) const {
  const Node& at = nodes_[id];
  if (at.kind == PickleKind::global) return names_[at.a].offset;
  const bool text = at.kind == PickleKind::string || at.kind == PickleKind::bytes;
  return text && at.text == Text::in_stream ? std::optional(at.n) : std::nullopt;
}

PickleId PickleGraph::find(PickleId dict, std::string_view key) const {
  if (dict == kNoPickle || !is(dict, PickleKind::dict)) return kNoPickle;
  const std::span<const PickleId> entries = items(dict);
  for (std::size_t i = 0; i + 1 < entries.size(); i += 2)
    if (is(entries[i], PickleKind::string) && text(entries[i]) == key) return entries[i + 1];
  return kNoPickle;
}

PickleId PickleGraph::find(PickleId dict, PickleName& key) const {
  if (dict == kNoPickle || !is(dict, PickleKind::dict)) return kNoPickle;
  const std::span<const PickleId> entries = items(dict);
  for (std::size_t i = 0; i + 1 < entries.size(); i += 2)
    if (entries[i] == key.last) return entries[i + 1];
  for (std::size_t i = 0; i + 1 < entries.size(); i += 2)
    if (is(entries[i], PickleKind::string) && text(entries[i]) == key.text) {
      key.last = entries[i];
      return entries[i + 1];
    }
  return kNoPickle;
}

PickleId PickleGraph::find(PickleId dict, std::int64_t key) const {
  if (dict == kNoPickle || !is(dict, PickleKind::dict)) return kNoPickle;
  const std::span<const PickleId> entries = items(dict);
  for (std::size_t i = 0; i + 1 < entries.size(); i += 2)
    if (is(entries[i], PickleKind::integer) && integer(entries[i]) == key) return entries[i + 1];
  return kNoPickle;
}

// Honest streams spend a few bytes for each byte they have; a number costs a Value of 150.
std::uint64_t PickleGraph::allowance() const { return 32 * std::uint64_t{bytes_.size()}; }

Result<> PickleGraph::charge(std::uint64_t bytes) const {
  const std::uint64_t purse = allowance() + unfold_;
  if (bytes > purse - charged_)
    return Error{Code::limit,
                 where_ + ": its values refer to each other until they take more than " +
                     std::to_string(purse) + " bytes, which is the limit",
                 {}};
  charged_ += bytes;
  return {};
}

std::uint64_t PickleGraph::unfolded() const { return charged_ - std::min(charged_, allowance()); }

namespace {

constexpr std::string_view kKnownGlobals[] = {
    "collections.OrderedDict",
    "collections.defaultdict",
    "collections.Counter",
    "_codecs.encode",
    "torch.Size",
    "torch.device",
    "torch.Tensor",
    "torch.serialization._get_layout",
    "torch.storage.UntypedStorage",
    "torch.storage.TypedStorage",
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
    "torch._utils._rebuild_meta_tensor_no_storage",
    "torch._tensor._rebuild_from_type_v2",
    "torch.nn.parameter.Parameter",
    "torch.distributed._shard.sharded_tensor.metadata.TensorProperties",
    "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING",
    "torch.distributed._shard.sharded_tensor.metadata.ShardedTensorMetadata",
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    "torch.distributed.checkpoint.filesystem._StoragePrefix",
    "torch.distributed.checkpoint._fsspec_filesystem._StorageInfo",
    "torch.distributed.checkpoint.planner.SavePlan",
    "torch.distributed.checkpoint.planner.WriteItem",
    "torch.distributed.checkpoint.planner.WriteItemType",
    "torch.distributed.checkpoint.planner.TensorWriteData",
    "megatron.core.dist_checkpointing.strategies.torch.MCoreMetadata",
    "megatron.core.dist_checkpointing.strategies.torch.MCoreSavePlan",
    "deepspeed.runtime.zero.config.ZeroStageEnum",
    "deepspeed.runtime.fp16.loss_scaler.LossScaler",
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
    "deepspeed.utils.tensor_fragment.fragment_address",
    "deepspeed.checkpoint.universal_checkpoint.SubparamShape",
    "numpy.dtype",
    "numpy.ndarray",
    "numpy.core.multiarray._reconstruct",
    "numpy._core.multiarray._reconstruct",
    "numpy.core.multiarray.scalar",
    "numpy._core.multiarray.scalar",
};
constexpr std::string_view kDataClasses[] = {
    "argparse.Namespace",
    "types.SimpleNamespace",
    "_io.BytesIO",
    "signal.Signals",
    "pathlib.PosixPath",
    "pathlib.PurePosixPath",
    "pathlib.Path",
    "pathlib.WindowsPath",
    "pathlib._local.PosixPath",
    "pathlib._local.PurePosixPath",
    "pathlib._local.Path",
    "pathlib._local.WindowsPath",
    "megatron.core.enums.ModelType",
    "megatron.core.transformer.enums.AttnBackend",
    "megatron.core.transformer.enums.CudaGraphModule",
    "megatron.core.transformer.enums.CudaGraphScope",
    "megatron.core.transformer.enums.InferenceCudaGraphScope",
    "megatron.core.optimizer.optimizer_config.OptimizerConfig",
    "megatron.core.rerun_state_machine.RerunDiagnostic",
    "megatron.core.rerun_state_machine.RerunMode",
    "megatron.core.rerun_state_machine.RerunState",
};
constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata.";
constexpr std::string_view kMetadataNames[] = {
    "Metadata",      "TensorStorageMetadata", "ChunkStorageMetadata", "TensorProperties",
    "MetadataIndex", "BytesStorageMetadata",  "StorageMeta",          "_MEM_FORMAT_ENCODING"};
constexpr std::string_view kBuiltins[] = {"set",   "frozenset", "complex", "bytearray",
                                          "dict",  "list",      "tuple",   "int",
                                          "float", "str",       "getattr"};

template <typename Names>
bool contains(const Names& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// torch.float32, torch.FloatStorage: one lower-case word, or a word that ends in Storage.
bool is_torch_atom(std::string_view rest) {
  if (rest.empty() || rest.find('.') != std::string_view::npos) return false;
  if (rest.ends_with("Storage")) return true;
  constexpr std::string_view kDtypeStems[] = {"float", "bfloat",  "int",  "uint",
                                              "bool",  "complex", "qint", "quint",
                                              "bits",  "double",  "half", "long"};
  return std::any_of(std::begin(kDtypeStems), std::end(kDtypeStems),
                     [&](std::string_view stem) { return rest.starts_with(stem); });
}

}  // namespace

bool is_known_global(std::string_view name) {
  const auto under = [&](std::string_view prefix) {
    return name.starts_with(prefix) ? name.substr(prefix.size()) : std::string_view{};
  };
  return contains(kKnownGlobals, name) || is_data_class(name) ||
         contains(kBuiltins, under("builtins.")) || contains(kBuiltins, under("__builtin__.")) ||
         contains(kMetadataNames, under(kMetadataModule)) || is_torch_atom(under("torch."));
}

bool is_data_class(std::string_view name) { return contains(kDataClasses, name); }

Result<> require_known_globals(const PickleGraph& graph) {
  for (const PickleGraph::Name& used : graph.names()) {
    if (is_known_global(used.name)) continue;
    std::string quoted;
    append_json_string(quoted, used.name);
    return refuse(
        Code::corrupt, graph.where(), used.offset,
        "the pickle names " + quoted + ", which no checkpoint index needs; nothing was executed");
  }
  return {};
}

}  // namespace ebb::formats
