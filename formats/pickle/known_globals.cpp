#include "ebb/formats/pickle/known_globals.h"

#include <algorithm>
#include <array>
#include <string>

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

// Of Megatron's arguments and configurations (megatron/core and megatron/training), and others'.
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
    // Of torchao's quantized tensors. Its data classes want arguments, which a pickle of one lacks.
    "torchao.quantization.quantize_.common.kernel_preference.KernelPreference",
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
    "torch._dynamo.decorators._DimRange",
    "torch.nested._internal.nested_tensor._rebuild_njt",
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

// How torch makes tensors; a release may have ways that this one does not know.
constexpr Name kRebuild = "torch._utils._rebuild_";

// Below `numpy`: types of scalars, which are names only.
constexpr Name kNumpyTypes[] = {"bool",   "bool_",  "float16", "float32",   "float64",
                                "int16",  "int32",  "int64",   "int8",      "uint16",
                                "uint32", "uint64", "uint8",   "complex64", "complex128"};

// Packages whose classes are tensors and what those keep beside their elements.
constexpr Name kTensorPackages[] = {
    "bitsandbytes.",
    "fbgemm_gpu.",
    "hqq.",
    "optimum.quanto.",
    "torch.distributed._shard.",
    "torch.distributed._tensor.",
    "torch.distributed.device_mesh.",
    "torch.distributed.remote_device.",
    "torch.distributed.tensor.",
    "torchao.",
    "transformer_engine.",
    "transformer_engine_torch.",
};

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
         !under(name, kRebuild).empty() || contains(kNumpyTypes, under(name, "numpy."));
}

bool is_data_class(std::string_view name) {
  return contains(kDataClasses, name) || contains(kDataEnumerations, name);
}

bool is_enumeration(std::string_view name) {
  return contains(kEnumerations, name) || contains(kDataEnumerations, name);
}

// By its spelling, in one of those packages.
bool is_tensor_class(std::string_view name) {
  const bool package =
      std::ranges::any_of(kTensorPackages, [&](Name prefix) { return name.starts_with(prefix); });
  const Name word = name.substr(name.rfind('.') + 1);
  const std::size_t first = word.find_first_not_of('_');
  return package && first != Name::npos &&
         ((word[first] >= 'A' && word[first] <= 'Z') || word == "_remote_device");
}

bool is_opaque_class(std::string_view name) {
  return contains(kOpaque, name) || is_tensor_class(name);
}

}  // namespace ebb::formats
