"""judge_quantized.py WRITTEN TRUTH.pt: torchao loads what ckpt-convert wrote of its tensors - a torch.save file or a
DCP folder - and its own dequantize() gives TRUTH (../fixtures/quantized). Needs torch 2.13.0, torchao 0.18.0.

A DCP folder is loaded into tensors of the classes that ../fixtures/quantized/states.pt has.
"""
import os, sys, warnings

warnings.filterwarnings("ignore")
import torch
import torch.distributed.checkpoint as dcp
import torchao.optim, torchao.prototype.mx_formats.nvfp4_tensor  # noqa: F401  (each names its classes to torch.load)

FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "quantized")


def leaves(value, above=""):
    if isinstance(value, dict):
        return {key: leaf for word, item in value.items() for key, leaf in leaves(item, f"{above}.{word}").items()}
    return {above: value} if isinstance(value, torch.Tensor) else {}


def plain(tensor):
    if hasattr(tensor, "get_original_weight"):
        return tensor.get_original_weight()
    return tensor if type(tensor) is torch.Tensor else tensor.dequantize()


def load(path):
    if os.path.isfile(f"{path}/checkpoint.pt"):
        path = f"{path}/checkpoint.pt"
    if os.path.isfile(path):
        return torch.load(path, weights_only=True)
    target = torch.load(f"{FIXTURES}/states.pt", weights_only=True)
    for tensor in leaves(target).values():
        tensor.copy_(torch.zeros_like(plain(tensor)))
    dcp.load(target, checkpoint_id=path, no_dist=True)
    return target


found, truth = leaves(load(sys.argv[1])), leaves(torch.load(sys.argv[2], weights_only=True))
classes = sum(type(tensor) is not torch.Tensor for tensor in found.values())
wrong = [key for key in sorted({*found, *truth})
         if key not in found or key not in truth or found[key].shape != truth[key].shape
         or not torch.equal(plain(found[key]), truth[key])]
print(f"{len(found)} tensors, {classes} of torchao's classes, {len(wrong)} wrong {' '.join(wrong[:4])}")
sys.exit(bool(wrong) or classes == 0)
