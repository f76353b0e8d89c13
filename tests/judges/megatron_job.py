#!/usr/bin/env python3
"""Jobs of the real megatron-core (0.18 or 0.19), on CPU tensors over gloo: they save checkpoints
and resume from them.

    megatron_job.py save CASE OUT           trains CASE, saves after `steps`; writes OUT/data,
                                            OUT/expected.json, and what the next steps give
    megatron_job.py resume CASE OUT FOLDER [key=value ...]
                                            a job of CASE, with other sizes if given (dp=3 tp=1),
                                            loads FOLDER and must go on as the job that saved OUT

PYTHONPATH: megatron-core, and emerging_optimizers 0.3 for Muon. A step's gradient is that of
sum(w^2)/2 + <noise, w>, where the noise is drawn for each parameter by its name: of two parameters
or groups that are swapped no step and no loss is the same, however equal their sizes are.
"""
import argparse
import hashlib
import importlib.machinery
import json
import logging
import os
import shutil
import sys
import types
import typing
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
if not hasattr(typing, "override"):  # all that the wheel for Python 3.12 misses on 3.11
    typing.override = lambda f: f
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64",
          torch.uint8: "U8", torch.float64: "F64"}


class Anything:
    """Stands for streams, kernels and loggers that a CPU does not have."""

    def __init__(self, *_, **__): pass
    def __call__(self, *_, **__): return self
    def __getattr__(self, name): return self
    def __enter__(self): return self
    def __exit__(self, *_): return False


def stub(name):
    module = types.ModuleType(name)

    def missing(attribute):
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return Anything()
    module.__getattr__ = missing
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    sys.modules[name] = module


def run_on_cpu():
    """Megatron-core asks for CUDA by name; no byte of a checkpoint is made here."""
    cpu = torch.device("cpu")
    for name in ("megatron.core.transformer.moe.ops.paged_stash",
                 "emerging_optimizers.triton_kernels", "absl"):
        stub(name)
    torch.cuda.current_device = lambda: cpu
    for name in ("synchronize", "empty_cache", "set_device", "reset_peak_memory_stats"):
        setattr(torch.cuda, name, lambda *_, **__: None)
    for name in ("Stream", "Event", "current_stream", "stream", "default_stream"):
        setattr(torch.cuda, name, Anything)
    torch.cuda.get_rng_state = lambda *_, **__: torch.get_rng_state()
    torch.Tensor.cuda = lambda self, *_, **__: self
    torch.nn.Module.cuda = lambda self, *_, **__: self

    def without_cuda(make):
        def wrapped(*args, **kwargs):
            if "cuda" in str(kwargs.get("device", "")):
                kwargs["device"] = cpu
            return make(*args, **kwargs)
        return wrapped
    for name in ("zeros", "empty", "ones", "tensor", "full", "arange", "rand", "randn",
                 "empty_like", "zeros_like"):
        setattr(torch, name, without_cuda(getattr(torch, name)))
    own_type = torch.Tensor.type

    def type_of(self, *args, **kwargs):
        said = own_type(self, *args, **kwargs)
        cpu_name = isinstance(said, str) and ".cuda" not in said
        return said.replace("torch.", "torch.cuda.", 1) if cpu_name else said
    torch.Tensor.type = type_of

    def all_gather(out, tensor, group=None, async_op=False):  # gloo refuses unequal sizes
        parts = [None] * len(out)
        dist.all_gather_object(parts, tensor.detach(), group=group)
        for into, part in zip(out, parts):
            into.copy_(part.view(into.shape))
        return Anything() if async_op else None
    dist.all_gather = all_gather


class FusedAdam(torch.optim.Optimizer):
    """AdamW with Apex's interface, which a GPU job has: the step is the group's. (With torch's own
    Adam megatron-core 0.19.2 cannot load what its distributed optimizer saved.)"""

    def __init__(self, params, lr, weight_decay, betas, eps, adam_w_mode, capturable=False):
        assert adam_w_mode and not capturable
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay, betas=betas, eps=eps,
                                      bias_correction=True))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            first, second = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                mean = state.setdefault("exp_avg", torch.zeros_like(p))
                square = state.setdefault("exp_avg_sq", torch.zeros_like(p))
                mean.lerp_(p.grad, 1 - first)
                square.mul_(second).addcmul_(p.grad, p.grad, value=1 - second)
                root = (square / (1 - second ** group["step"])).sqrt().add_(group["eps"])
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.addcdiv_(mean, root, value=-group["lr"] / (1 - first ** group["step"]))


def use_fused_adam():
    import megatron.core.optimizer as optimizer
    from megatron.core.optimizer import distrib_optimizer
    optimizer.Adam = distrib_optimizer.Adam = FusedAdam
    optimizer.USING_PYTORCH_OPTIMIZER = False
    distrib_optimizer.HAVE_APEX_OR_TE = distrib_optimizer.USING_APEX_OPTIMIZER = True


def digest(tensor):
    tensor = tensor.detach().contiguous().cpu()
    raw = tensor.flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return hashlib.sha256(raw).hexdigest()


def start(rank, world, case, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank),
                      WORLD_SIZE=str(world), CUDA_DEVICE_MAX_CONNECTIONS="1")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    from megatron.core import parallel_state, tensor_parallel
    parallel_state.initialize_model_parallel(case["tp"], case["pp"],
                                             expert_model_parallel_size=case["ep"],
                                             create_gloo_process_groups=True)
    torch.manual_seed(case["seed"])
    try:
        tensor_parallel.random.model_parallel_cuda_manual_seed(case["seed"])
    except Exception:  # needs CUDA; weights are drawn by name below
        pass
    return parallel_state


def gpt(case, parallel):
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import TransformerConfig
    dtype = torch.bfloat16 if case["bf16"] else torch.float32
    settings = dict(
        num_layers=case["layers"], hidden_size=case["hidden"], num_attention_heads=2,
        ffn_hidden_size=case["ffn"], use_cpu_initialization=True, params_dtype=dtype,
        pipeline_dtype=dtype, bf16=case["bf16"], tensor_model_parallel_size=case["tp"],
        pipeline_model_parallel_size=case["pp"], add_bias_linear=case["bias"],
        gated_linear_unit=case["glu"], gradient_accumulation_fusion=False,
        bias_dropout_fusion=False, attention_softmax_in_fp32=True)
    if case["experts"]:
        settings.update(num_moe_experts=case["experts"], moe_router_topk=1,
                        expert_model_parallel_size=case["ep"], moe_router_pre_softmax=True,
                        moe_ffn_hidden_size=case["ffn"], moe_token_dispatcher_type="alltoall",
                        sequence_parallel=case["tp"] > 1)
    config = TransformerConfig(**settings)
    spec = get_gpt_layer_local_spec(num_experts=case["experts"] or None, moe_grouped_gemm=False)
    model = GPTModel(config=config, transformer_layer_spec=spec, vocab_size=case["vocab"],
                     max_sequence_length=case["hidden"], share_embeddings_and_output_weights=False,
                     pre_process=parallel.is_pipeline_first_stage(),
                     post_process=parallel.is_pipeline_last_stage())
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return config, model


def drawn(key, shape, tag):
    seed = int(hashlib.sha256(f"{tag}|{key}".encode()).hexdigest()[:15], 16)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def shards_of(entry):
    """The pieces of one parameter in the checkpoint, and the way back from them."""
    from megatron.core.dist_checkpointing.mapping import ShardedTensorFactory
    if isinstance(entry, ShardedTensorFactory):
        return entry.build(), entry.merge_fn
    return [entry], lambda parts: parts[0]


def part_of(shard, whole):
    """Of a whole tensor what a shard has."""
    stacked = shard.prepend_axis_num
    lengths = zip(shard.global_offset[stacked:], shard.local_shape)
    at = tuple(shard.global_offset[:stacked]) + tuple(slice(o, o + n) for o, n in lengths)
    return whole[at]


def noise_for(entry, tag):
    shards, merge = shards_of(entry)
    return merge([part_of(s, drawn(s.key, s.global_shape, tag)) for s in shards])


class Job:
    def __init__(self, case, parallel):
        from megatron.core.distributed import DistributedDataParallelConfig
        from megatron.core.optimizer import (
            OptimizerConfig, get_megatron_optimizer, get_standard_config_overrides)
        self.case, self.parallel = case, parallel
        config, self.model = gpt(case, parallel)
        self.named = dict(self.model.named_parameters())
        self.entries = {id(e.data): e for e in self.model_state({}).values()
                        if isinstance(getattr(e, "data", None), torch.nn.Parameter)}
        with torch.no_grad():
            for parameter in self.named.values():
                parameter.copy_(0.5 * noise_for(self.entries[id(parameter)], case["seed"]))
        muon = case["optimizer"] == "muon"
        ddp = DistributedDataParallelConfig(use_distributed_optimizer=case["distributed"],
                                            grad_reduce_in_fp32=True, overlap_grad_reduce=False)
        if case["bucket"]:
            ddp.bucket_size, ddp.overlap_grad_reduce = case["bucket"], True
        self.ddp = self.wrapped(config, ddp, muon and case["distributed"])
        settings = OptimizerConfig(
            optimizer=case["optimizer"], lr=0.02, min_lr=0.0, weight_decay=0.01, bf16=case["bf16"],
            params_dtype=config.params_dtype, clip_grad=0.0, adam_beta1=0.8, adam_beta2=0.95,
            use_distributed_optimizer=case["distributed"] and not muon,
            use_layer_wise_distributed_optimizer=muon, muon_momentum=0.9,
            muon_tp_mode="duplicated")
        self.optimizer = get_megatron_optimizer(
            settings, [self.ddp], config_overrides=get_standard_config_overrides(settings))

    def wrapped(self, config, ddp, layer_wise):
        """As megatron.training's wrap_model_chunks_with_ddp does it."""
        from megatron.core.distributed import DistributedDataParallel
        from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
        from megatron.core.optimizer.layer_wise_optimizer import (
            LayerWiseDistributedOptimizer, tag_params_for_buffer_routing)
        kwargs = {}
        if ddp.use_distributed_optimizer:
            if layer_wise:
                tag_params_for_buffer_routing([self.model])
            laid_out = LayerWiseDistributedOptimizer if layer_wise else DistributedOptimizer
            kwargs["full_param_layout"] = laid_out.compute_full_param_layout(
                list(self.model.parameters()), ddp.bucket_size,
                self.parallel.get_data_parallel_world_size(), ddp,
                expert_data_parallel_world_size=self.parallel.get_expert_data_parallel_world_size())
        return DistributedDataParallel(config=config, ddp_config=ddp, module=self.model, **kwargs)

    def metadata(self):
        """As megatron.training's _build_sharded_state_dict_metadata has it."""
        kind = {"distrib_optim_sharding_type": self.case["sharding"]}
        if self.case["sharding"] == "fully_reshardable":
            kind["distrib_optim_fully_reshardable_mem_efficient"] = False
        return {**kind, "singleton_local_shards": False, "chained_optim_avoid_prefix": True}

    def model_state(self, metadata):
        metadata = dict(metadata, dp_cp_group=self.parallel.get_data_parallel_group(
            with_context_parallel=True))
        return self.model.sharded_state_dict(metadata=metadata)

    def state(self, metadata, is_loading=False):
        model = self.model_state(metadata)
        metadata = dict(metadata, dp_cp_group=self.parallel.get_data_parallel_group(
            with_context_parallel=True))
        optimizer = self.optimizer.sharded_state_dict(model, is_loading=is_loading,
                                                      metadata=metadata)
        return {"model": model, "optimizer": optimizer}

    def loss(self):
        from megatron.core.dist_checkpointing.mapping import is_main_replica
        total = torch.zeros((), dtype=torch.float64)
        for parameter in self.named.values():
            for shard in shards_of(self.entries[id(parameter)])[0]:
                if not is_main_replica(shard.replica_id):
                    continue
                weights = shard.data.detach().double()
                noise = part_of(shard, drawn(shard.key, shard.global_shape, "loss")).double()
                total += (weights * noise).sum() + (weights * weights).sum() / 2
        dist.all_reduce(total)
        return total.item()

    def step(self, number):
        for parameter in self.named.values():
            noise = noise_for(self.entries[id(parameter)], f"step {number}")
            parameter.main_grad.copy_(noise + parameter.detach().float())
        assert self.optimizer.step()[0]
        return self.loss()

    def tensors(self):
        """Whole tensors of all states, by key: the same words in every layout."""
        from megatron.core.dist_checkpointing.dict_utils import nested_values
        from megatron.core.dist_checkpointing.mapping import (
            ShardedTensor, apply_factories, is_main_replica)
        state = self.state({**self.metadata(), "distrib_optim_sharding_type": "fully_reshardable",
                            "distrib_optim_fully_reshardable_mem_efficient": False})
        apply_factories(state)
        mine = [(s.key, s.data.detach().clone(), tuple(s.global_shape), s.without_data())
                for s in nested_values(state)
                if isinstance(s, ShardedTensor) and is_main_replica(s.replica_id)]
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, mine)
        whole = {}
        for key, data, shape, shard in (p for rank in parts for p in rank):
            into = whole.setdefault(key, torch.full(shape, float("nan")).to(data.dtype))
            part_of(shard, into).copy_(data)
        return whole


def leave():
    """Ends this rank and the writer that megatron-core started for it."""
    sys.stdout.flush()
    import psutil
    for child in psutil.Process().children(recursive=True):
        child.kill()
    os._exit(0)


def split(key):
    """(name, state) of a torch_dist key."""
    masters = {"fp32_param": "master", "param": "master"}
    words = key.split(".")
    if ".bucket_idx_" in key:
        return ".".join(words[:-1]), masters.get(words[-1], words[-1])
    if words[0].startswith("chained_"):
        words = words[1:]
    if words[:2] != ["optimizer", "state"]:
        return key, "param"
    return ".".join(words[3:]), masters.get(words[2], words[2])


def row(key, tensor):
    name, state = split(key)
    return {"key": key, "name": name, "state": state, "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape), "sha256": digest(tensor)}


def stored(folder):
    """What the framework itself reads from the folder, whole."""
    from megatron.core import dist_checkpointing
    found = dist_checkpointing.load_plain_tensors(folder)
    return {k: v for k, v in found.items() if isinstance(v, torch.Tensor)}


def plain(value):
    if isinstance(value, argparse.Namespace):
        return {"__namespace__": plain(vars(value))}
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, torch.Tensor):
        return {"__tensor__": DTYPES[value.dtype], "shape": list(value.shape),
                "sha256": digest(value)}
    return value if isinstance(value, (int, float, str, bool, type(None))) else repr(value)


def next_steps(job, first):
    losses = [job.step(first + i) for i in range(3)]
    return losses, {key: digest(tensor) for key, tensor in job.tensors().items()}


def save(rank, world, case, port):
    parallel = start(rank, world, case, port)
    import megatron.core
    from megatron.core import dist_checkpointing
    job = Job(case, parallel)
    for number in range(case["steps"]):
        job.step(number)
    steps = case["steps"]
    folder = f"data/iter_{steps:07d}"
    if rank == 0:
        os.makedirs(folder)
    dist.barrier()
    state = job.state(job.metadata())
    state.update(iteration=steps, checkpoint_version=3.0, args=argparse.Namespace(
        tensor_model_parallel_size=case["tp"], pipeline_model_parallel_size=case["pp"],
        use_layer_wise_param_layout=case["distributed"], ckpt_format="torch_dist"))
    dist_checkpointing.save(state, folder, content_metadata=job.metadata())
    dist.barrier()
    live = {key: digest(tensor) for key, tensor in job.tensors().items()}
    losses, after = next_steps(job, steps)
    if rank == 0:
        with open("data/latest_checkpointed_iteration.txt", "w") as tracker:
            tracker.write(str(steps))
        common = dist_checkpointing.load_common_state_dict(folder)
        rows = [row(key, tensor) for key, tensor in sorted(stored(folder).items())]
        by_name = {(split(key)): digest for key, digest in live.items()}
        bad = [r["key"] for r in rows
               if ".bucket_idx_" not in r["key"] and by_name[(r["name"], r["state"])] != r["sha256"]]
        assert not bad, f"the framework reads back other content: {bad}"
        listed = dist_checkpointing.serialization.load_sharded_metadata(folder)
        objects = sorted(k for k, v in listed.items() if type(v).__name__ == "ShardedObject"
                         and not k.startswith("common_state/"))
        notes = {"convert": "flat buckets of dp_reshardable: only a job of the same tensor and "
                            "pipeline parallel sizes knows whose elements are where"}
        versions = {"megatron-core": megatron.core.__version__,
                    "torch": torch.__version__.split("+")[0], "emerging-optimizers": "0.3.0",
                    "backend": "gloo, CPU tensors"}
        json.dump({"format": "megatron-torch_dist", "produced_by": versions, "ranks": world,
                   "tensors": rows,
                   "values": {"iteration": steps, "folder": f"iter_{steps:07d}",
                              "common": plain(common), "objects": objects, "replicas_differ": [],
                              **(notes if case["sharding"] == "dp_reshardable" else {})},
                   "resumed": {"losses": losses, "live": live, "after": after}},
                  open("expected.json", "w"), indent=1)
        print(f"{len(rows)} tensors, losses {losses}", flush=True)
    dist.barrier()
    leave()


def resume(rank, world, case, port, folder, out):
    parallel = start(rank, world, case, port)
    from megatron.core import dist_checkpointing
    said = json.load(open(os.path.join(out, "expected.json")))["resumed"]
    job = Job(case, parallel)
    common = dist_checkpointing.load_common_state_dict(folder)
    metadata = dist_checkpointing.load_content_metadata(preloaded_state_dict=common)
    state = job.state(metadata, is_loading=True)
    loaded = dist_checkpointing.load(state, folder)
    job.model.load_state_dict(loaded["model"])
    job.optimizer.load_state_dict(loaded["optimizer"])
    live = {key: digest(tensor) for key, tensor in job.tensors().items()}
    bad = [f"{key} is not what was saved" for key in said["live"] if live[key] != said["live"][key]]
    losses, after = next_steps(job, case["steps"])
    same = world == case["saved_by"]
    for i, (found, wanted) in enumerate(zip(losses, said["losses"])):
        if abs(found - wanted) > (0 if same else 1e-6) * abs(wanted):
            bad.append(f"loss {i + 1} after it is {found}, not {wanted}")
    if same:
        bad += [f"{k} differs after 3 steps" for k in said["after"] if after[k] != said["after"][k]]
    if rank == 0:
        print("\n".join(bad[:20]) or f"{len(live)} tensors and 3 losses agree: {losses}", flush=True)
    dist.barrier()
    if bad:
        os._exit(1)
    leave()


BASE = dict(tp=1, pp=1, ep=1, dp=1, layers=1, hidden=8, ffn=8, vocab=24, steps=3, bias=True,
            glu=False, bf16=True, experts=0, bucket=None, optimizer="muon", distributed=True,
            sharding="fully_reshardable", seed=0)
CASES = {
    # The default of --optimizer muon --use-distributed-optimizer since 0.18.
    "muon_distopt_tp2_dp2": dict(BASE, tp=2, dp=2, glu=True, seed=501),
    "muon_distopt_buckets_dp2": dict(BASE, dp=2, sharding="dp_reshardable", seed=502),
    "muon_distopt_moe_ep2": dict(BASE, dp=2, ep=2, experts=4, bias=False, seed=503),
    # Everything in the layer-wise optimizer: --no-use-layer-wise-param-layout, and before 0.18.
    "muon_layerwise_dp2": dict(BASE, dp=2, distributed=False, seed=504),
    # Several buckets: what fully_reshardable saves of them is shifted (Megatron-LM pull 5077).
    "adam_shifted_buckets_dp2": dict(BASE, dp=2, optimizer="adam", bucket=300, seed=505),
}


def processes(work, case, *more):
    import torch.multiprocessing
    import megatron.core.dist_checkpointing  # noqa: F401  once, before the fork
    import megatron.core.models.gpt  # noqa: F401
    use_fused_adam()
    world = case["tp"] * case["pp"] * case["dp"]
    port = 20000 + os.getpid() % 20000
    torch.multiprocessing.start_processes(work, (world, case, port, *more), nprocs=world,
                                          start_method="fork")


def main():
    run_on_cpu()
    action, name, out = sys.argv[1:4]
    case = dict(CASES[name])
    case["saved_by"] = case["tp"] * case["pp"] * case["dp"]
    if action == "save":
        shutil.rmtree(out, ignore_errors=True)
        os.makedirs(out + "/data")
        os.chdir(out)  # relative: the path goes into .metadata
        processes(save, case)
    else:
        for setting in sys.argv[5:]:
            key, value = setting.split("=")
            case[key] = int(value)
        processes(resume, case, os.path.abspath(sys.argv[4]), os.path.abspath(out))


if __name__ == "__main__":
    main()
