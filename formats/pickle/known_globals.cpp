#include "ebb/formats/pickle/known_globals.h"

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <string>

#include "ebb/formats/core/json_text.h"

namespace ebb::formats {
namespace {

using Name = std::string_view;

// What readers here interpret. torch/_weights_only_unpickler.py allows the ones of torch.
constexpr Name kInterpreted[] = {
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
    "torch._utils._rebuild_qtensor",
    "torch._utils._rebuild_sparse_tensor",
    "torch._utils._rebuild_nested_tensor",
    "torch._utils._rebuild_wrapper_subclass",
    "torch._utils._rebuild_device_tensor_from_numpy",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor",
    "torch._tensor._rebuild_from_type_v2",
    "torch.nn.parameter.Parameter",
    // torch/distributed/checkpoint: the index, its plans and Megatron's kinds of them.
    "torch.distributed.checkpoint.metadata.Metadata",
    "torch.distributed.checkpoint.metadata.TensorStorageMetadata",
    "torch.distributed.checkpoint.metadata.ChunkStorageMetadata",
    "torch.distributed.checkpoint.metadata.TensorProperties",
    "torch.distributed.checkpoint.metadata.MetadataIndex",
    "torch.distributed.checkpoint.metadata.BytesStorageMetadata",
    "torch.distributed.checkpoint.metadata.StorageMeta",
    "torch.distributed._shard.sharded_tensor.metadata.TensorProperties",
    "torch.distributed._shard.sharded_tensor.metadata.ShardedTensorMetadata",
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    "torch.distributed.checkpoint.filesystem._StoragePrefix",
    "torch.distributed.checkpoint._fsspec_filesystem._StorageInfo",
    "torch.distributed.checkpoint.planner.SavePlan",
    "torch.distributed.checkpoint.planner.WriteItem",
    "torch.distributed.checkpoint.planner.TensorWriteData",
    "megatron.core.dist_checkpointing.strategies.torch.MCoreMetadata",
    "megatron.core.dist_checkpointing.strategies.torch.MCoreSavePlan",
    // deepspeed/runtime: what its optimizers keep beside tensors.
    "deepspeed.runtime.fp16.loss_scaler.LossScaler",
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
    "deepspeed.utils.tensor_fragment.fragment_address",
    "deepspeed.checkpoint.universal_checkpoint.SubparamShape",
};

// Of torch's, DeepSpeed's and Megatron's indexes and optimizers.
constexpr Name kEnumerations[] = {
    "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
    "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING",
    "torch.distributed.checkpoint.planner.WriteItemType",
    "deepspeed.runtime.zero.config.ZeroStageEnum",
};

// Of Megatron's arguments and configurations (megatron/core and megatron/training).
constexpr Name kDataEnumerations[] = {
    "signal.Signals",
    "megatron.core.enums.Fp4Recipe",
    "megatron.core.enums.Fp8Recipe",
    "megatron.core.enums.ModelType",
    "megatron.core.inference.config.AsyncScheduleMode",
    "megatron.core.inference.config.CudaGraphSizingDistribution",
    "megatron.core.inference.config.KVCacheManagementMode",
    "megatron.core.inference.config.PrefixCachingCoordinatorPolicy",
    "megatron.core.inference.config.PrefixCachingEvictionPolicy",
    "megatron.core.rerun_state_machine.RerunDiagnostic",
    "megatron.core.rerun_state_machine.RerunMode",
    "megatron.core.rerun_state_machine.RerunState",
    "megatron.core.transformer.enums.AttnBackend",
    "megatron.core.transformer.enums.AttnMaskType",
    "megatron.core.transformer.enums.AttnType",
    "megatron.core.transformer.enums.CudaGraphModule",
    "megatron.core.transformer.enums.CudaGraphScope",
    "megatron.core.transformer.enums.InferenceCudaGraphScope",
    "megatron.core.transformer.enums.LayerType",
    "megatron.core.transformer.enums.ModelType",
};

// Python's, which Megatron's common state and torch DCP's save ids are made of.
constexpr Name kDataClasses[] = {
    "argparse.Namespace",
    "types.SimpleNamespace",
    "_io.BytesIO",
    "pathlib.PosixPath",
    "pathlib.PurePosixPath",
    "pathlib.Path",
    "pathlib.WindowsPath",
    "pathlib._local.PosixPath",
    "pathlib._local.PurePosixPath",
    "pathlib._local.Path",
    "pathlib._local.WindowsPath",
    "megatron.core.optimizer.optimizer_config.OptimizerConfig",
};

// Values that make a value and do nothing else: Python's and numpy's, as random states and
// arguments hold them, and the trainers' dicts (PyTorch Lightning, omegaconf in NeMo and fairseq).
constexpr Name kOpaque[] = {
    "array._array_reconstructor",
    "collections.deque",
    "copy_reg._reconstructor",
    "copyreg._reconstructor",
    "datetime.date",
    "datetime.datetime",
    "datetime.time",
    "datetime.timedelta",
    "datetime.timezone",
    "decimal.Decimal",
    "fractions.Fraction",
    "ipaddress.IPv4Address",
    "random.Random",
    "typing.Any",
    "uuid.UUID",
    "numpy.dtype",
    "numpy.ndarray",
    "numpy.core.multiarray._reconstruct",
    "numpy._core.multiarray._reconstruct",
    "numpy.core.multiarray.scalar",
    "numpy._core.multiarray.scalar",
    "numpy.core.numeric._frombuffer",
    "numpy._core.numeric._frombuffer",
    "numpy.random._pickle.__bit_generator_ctor",
    "numpy.random._pickle.__generator_ctor",
    "numpy.random._pickle.__randomstate_ctor",
    "numpy.random._mt19937.MT19937",
    "numpy.random._pcg64.PCG64",
    "numpy.random._philox.Philox",
    "numpy.random.bit_generator.SeedSequence",
    "numpy.random.bit_generator.__pyx_unpickle_SeedSequence",
    "torch.storage",  // how a bare storage is called here
    "torch.distributed.device_mesh.DeviceMesh",
    "torch.distributed._mesh_layout._FlatLayout",
    "torch.distributed._mesh_layout._MeshLayout",
    "torch.distributed.tensor.DTensor",
    "torch.distributed.tensor._dtensor_spec.DTensorSpec",
    "torch.distributed.tensor._dtensor_spec.ShardOrderEntry",
    "torch.distributed.tensor._dtensor_spec.TensorMeta",
    "torch.distributed.tensor.placement_types.Partial",
    "torch.distributed.tensor.placement_types.Replicate",
    "torch.distributed.tensor.placement_types.Shard",
    "torch.distributed.tensor.placement_types._StridedShard",
    "lightning.fabric.utilities.data.AttributeDict",
    "lightning.pytorch.utilities.parsing.AttributeDict",
    "lightning_fabric.utilities.data.AttributeDict",
    "pytorch_lightning.utilities.parsing.AttributeDict",
    "omegaconf.base.ContainerMetadata",
    "omegaconf.base.Metadata",
    "omegaconf.dictconfig.DictConfig",
    "omegaconf.listconfig.ListConfig",
    "omegaconf.nodes.AnyNode",
    "omegaconf.nodes.BooleanNode",
    "omegaconf.nodes.FloatNode",
    "omegaconf.nodes.IntegerNode",
    "omegaconf.nodes.StringNode",
};

// Below `builtins` and, in protocol 2, `__builtin__`.
constexpr Name kBuiltins[] = {"bool",   "bytearray", "bytes",   "complex", "dict", "Ellipsis",
                              "float",  "frozenset", "getattr", "int",     "list", "long",
                              "object", "range",     "set",     "slice",   "str",  "tuple",
                              "type",   "unicode",   "xrange"};

// Below `torch`: its dtypes and quantization schemes; storages and tensor classes by their endings.
constexpr Name kTorchAtoms[] = {
    "bfloat16",
    "bits16",
    "bits1x8",
    "bits2x4",
    "bits4x2",
    "bits8",
    "bool",
    "complex128",
    "complex32",
    "complex64",
    "double",
    "float",
    "float16",
    "float32",
    "float4_e2m1fn_x2",
    "float64",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "half",
    "int",
    "int1",
    "int16",
    "int2",
    "int3",
    "int32",
    "int4",
    "int5",
    "int6",
    "int64",
    "int7",
    "int8",
    "long",
    "per_channel_affine",
    "per_channel_affine_float_qparams",
    "per_channel_symmetric",
    "per_tensor_affine",
    "per_tensor_symmetric",
    "qint32",
    "qint8",
    "quint2x4",
    "quint4x2",
    "quint8",
    "short",
    "uint1",
    "uint16",
    "uint2",
    "uint3",
    "uint32",
    "uint4",
    "uint5",
    "uint6",
    "uint64",
    "uint7",
    "uint8",
};

// Below `numpy`: types of scalars, which are names only.
constexpr Name kNumpyTypes[] = {"bool",   "bool_",  "float16", "float32",   "float64",
                                "int16",  "int32",  "int64",   "int8",      "uint16",
                                "uint32", "uint64", "uint8",   "complex64", "complex128"};

template <typename Names>
bool contains(const Names& names, Name name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// What follows `prefix`; "" when that is nothing, or has a dot in it.
Name under(Name name, Name prefix) {
  const Name rest = name.starts_with(prefix) ? name.substr(prefix.size()) : Name{};
  return rest.find('.') == Name::npos ? rest : Name{};
}

// torch.FloatStorage, torch.cuda.HalfTensor: pieces of torch with one word behind them.
bool is_torch_atom(Name name) {
  if (contains(kTorchAtoms, under(name, "torch."))) return true;
  return std::ranges::any_of(
      std::array<Name, 4>{"torch.", "torch.cuda.", "torch.sparse.", "torch.cuda.sparse."},
      [&](Name prefix) {
        const Name rest = under(name, prefix);
        return rest.size() > 7 && (rest.ends_with("Storage") || rest.ends_with("Tensor")) &&
               rest.front() >= 'A' && rest.front() <= 'Z';
      });
}

Name builtin_in(Name name) {
  const Name word = under(name, "builtins.");
  return word.empty() ? under(name, "__builtin__.") : word;
}

}  // namespace

bool is_known_global(std::string_view name) {
  return contains(kInterpreted, name) || is_data_class(name) || is_enumeration(name) ||
         is_opaque_class(name) || contains(kBuiltins, builtin_in(name)) || is_torch_atom(name) ||
         contains(kNumpyTypes, under(name, "numpy."));
}

bool is_data_class(std::string_view name) {
  return contains(kDataClasses, name) || contains(kDataEnumerations, name);
}

bool is_enumeration(std::string_view name) {
  return contains(kEnumerations, name) || contains(kDataEnumerations, name);
}

bool is_opaque_class(std::string_view name) { return contains(kOpaque, name); }

namespace {

// What other readers call an object is no name of Python's.
bool is_unsafe_name(std::string_view name) {
  return name == kCallOfAResult || name.ends_with("builtins.getattr") ||
         name.ends_with("__builtin__.getattr") ||
         (name.find('.') != std::string_view::npos && !is_known_global(name));
}

void add_names(const Value& value, std::vector<std::string_view>& names) {
  if (value.kind == Value::Kind::object && is_unsafe_name(value.text)) names.push_back(value.text);
  for (const Value& item : value.items) add_names(item, names);
  for (const auto& [key, item] : value.entries) {
    add_names(key, names);
    add_names(item, names);
  }
}

// getattr of anything but an enumeration, and calls of what calls returned.
bool is_misuse(const PickleGraph& graph, PickleId id) {
  if (!graph.is(id, PickleKind::object)) return false;
  const Name callee = graph.class_name(id);
  if (callee.empty()) return true;
  if (callee != "builtins.getattr" && callee != "__builtin__.getattr") return false;
  const std::span<const PickleId> args = graph.items(graph.args(id));
  return args.size() != 2 || !graph.is(args[0], PickleKind::global) ||
         !is_enumeration(graph.text(args[0]));
}

Error refused(const std::string& where, std::string_view name) {
  return Error{
      Code::corrupt,
      compose("{}: the pickle names {}, which no framework writes here; nothing was executed",
              where, json_string(name))};
}

}  // namespace

std::string_view unsafe_name_below(const PickleGraph& graph, PickleId id) {
  std::vector<PickleId> rest{id};
  std::vector<bool> seen(graph.size());
  while (!rest.empty()) {
    const PickleId at = rest.back();
    rest.pop_back();
    if (at == kNoPickle || seen[at]) continue;
    seen[at] = true;
    switch (graph.kind(at)) {
      case PickleKind::global:
        if (!is_known_global(graph.text(at))) return graph.text(at);
        break;
      case PickleKind::object:
        if (is_misuse(graph, at)) return kCallOfAResult;
        rest.insert(rest.end(), {graph.callee(at), graph.args(at), graph.state(at)});
        break;
      case PickleKind::tuple:
      case PickleKind::list:
      case PickleKind::dict:
      case PickleKind::set:
      case PickleKind::persistent: {
        const std::span<const PickleId> items = graph.items(at);
        rest.insert(rest.end(), items.begin(), items.end());
        break;
      }
      default:
        break;
    }
  }
  return {};
}

std::string_view unsafe_part(const Value& value) {
  std::vector<std::string_view> names;
  add_names(value, names);
  return names.empty() ? std::string_view{} : names.front();
}

std::vector<UnsafeValue> unsafe_values(const Catalog& catalog) {
  std::vector<UnsafeValue> found;
  const auto look_at = [&](const std::string& key, const Value& value) {
    if (const Name name = unsafe_part(value); !name.empty())
      found.push_back({key, std::string(name)});
  };
  for (const ValueEntry& entry : catalog.values)
    if (!entry.echoed) look_at(entry.key, entry.value);
  for (std::size_t i = 0; i < catalog.groups.size(); ++i)
    for (const auto& [name, value] : catalog.groups[i].settings)
      look_at(compose("parameter group {}: {}", i, name), value);
  return found;
}

Error error_of(const UnsafeValue& value, std::string_view checkpoint) {
  return refused(compose("{}: value {}", checkpoint, json_string(value.key)), value.name);
}

Result<> refuse_hidden_calls(const PickleGraph& graph, const std::vector<const Value*>& values) {
  std::vector<std::string_view> shown;
  for (const Value* value : values) add_names(*value, shown);
  if (!shown.empty()) return {};  // they are told already, and what is inside them is theirs
  UnknownNames names;
  names.look_at(graph, "");
  return names.refuse();
}

void UnknownNames::look_at(const PickleGraph& graph, const std::string& file) {
  for (const PickleGraph::Name& used : graph.names())
    if (!is_known_global(used.name))
      first_use_.try_emplace(used.name, file, compose("{}:{}", graph.where(), used.offset));
  for (PickleId id = 0; id < graph.size(); ++id)
    if (is_misuse(graph, id))
      first_use_.try_emplace(
          std::string(graph.class_name(id).empty() ? kCallOfAResult : graph.class_name(id)), file,
          graph.where());
}

void UnknownNames::show_in(Catalog& catalog) const {
  std::set<std::string, std::less<>> shown;
  for (UnsafeValue& value : unsafe_values(catalog)) shown.insert(std::move(value.name));
  for (const auto& [name, use] : first_use_) {
    if (shown.contains(name)) continue;
    Value value;
    value.kind = Value::Kind::object;
    value.text = name;
    const std::string key = "pickle of " + use.file;
    catalog.values.push_back({key, {key}, std::move(value)});
  }
}

Result<> UnknownNames::refuse() const {
  if (first_use_.empty()) return {};
  const auto& [name, use] = *first_use_.begin();
  return refused(use.where, name);
}

Result<> require_known_globals(const PickleGraph& graph) { return refuse_hidden_calls(graph, {}); }

}  // namespace ebb::formats
