"""What Ebb is compared with: torch's optimizers, one written by hand, Newton-Schulz in fp32."""
import math

import torch
from torch import Tensor

NS = (3.4445, -4.7750, 2.0315)


def newton_schulz_fp32(update: Tensor) -> Tensor:
    """torch.optim.Muon's, without its bf16."""
    a, b, c = NS
    x = update.float()
    tall = x.size(0) > x.size(1)
    if tall:
        x = x.T
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


def newton_schulz_bf16(update: Tensor) -> Tensor:
    from torch.optim._muon import _zeropower_via_newtonschulz
    return _zeropower_via_newtonschulz(update, NS, 5, 1e-7)


class Muon32(torch.optim.Optimizer):
    """torch.optim.Muon 2.13 with Newton-Schulz in fp32."""
    def __init__(self, params, lr: float, weight_decay: float = 0.1, momentum: float = 0.95):
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay, momentum=momentum))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            lr, beta = float(group["lr"]), group["momentum"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                buffer = state.setdefault("momentum_buffer", torch.zeros_like(p))
                buffer.lerp_(p.grad, 1 - beta)
                o = newton_schulz_fp32(p.grad.lerp(buffer, beta))
                p.mul_(1 - lr * group["weight_decay"])
                p.add_(o, alpha=-lr * math.sqrt(max(1, p.shape[0] / p.shape[1])))


class ByHand:
    """Both formulas, one parameter after the other, nothing of torch.optim: what the baseline must
    itself agree with."""
    def __init__(self, muon, adamw, muon_lr: float, adamw_lr: float, orthogonal):
        self.muon, self.adamw = list(muon), list(adamw)
        self.muon_lr, self.adamw_lr, self.orthogonal = muon_lr, adamw_lr, orthogonal
        self.m = [torch.zeros_like(p) for p in self.muon]
        self.first = [torch.zeros_like(p) for p in self.adamw]
        self.second = [torch.zeros_like(p) for p in self.adamw]
        self.steps = 0

    @torch.no_grad()
    def step(self, factor: float, clip: float) -> None:
        self.steps += 1
        grads = [p.grad for p in self.muon + self.adamw]
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in grads))
        scale = min(1.0, clip / (norm + 1e-6)) if clip else 1.0
        lr = self.muon_lr * factor
        for p, m in zip(self.muon, self.m):
            g = p.grad * scale
            m.mul_(0.95).add_(g * 0.05)
            o = self.orthogonal(g * 0.05 + m * 0.95)
            p.copy_(p * (1 - lr * 0.1) - o * (lr * math.sqrt(max(1, p.shape[0] / p.shape[1]))))
        lr = self.adamw_lr * factor
        for p, a, b in zip(self.adamw, self.first, self.second):
            g = p.grad * scale
            a.mul_(0.9).add_(g * 0.1)
            b.mul_(0.999).add_(g * g * 0.001)
            upper = a / (1 - 0.9 ** self.steps)
            lower = (b / (1 - 0.999 ** self.steps)).sqrt() + 1e-8
            p.copy_(p * (1 - lr * 0.01) - upper / lower * lr)
