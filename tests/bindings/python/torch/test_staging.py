"""Parameters that are stepped through memory of the host's own, as those of a GPU are: on this
machine all lie in the host's, so that what is staged can be held to what is not."""
import functools
import warnings

import torch

import ebb.torch
import ebb.torch._run
from ebb.torch._staging import Staging
from worlds import (Net, check_same, fill, hand_gradients, exact_groups, places_of, row, run_rows,
                    weights_of)


def trained(swap: str, always: bool, dtype: torch.dtype) -> list[dict[str, torch.Tensor]]:
    """Weights behind each of some steps, one of them behind an edit of the trainer's, one behind
    a state dict that was loaded."""
    ebb.torch._run.Staging = functools.partial(Staging, always=always)
    places = places_of(Net, None)
    model = Net().to(dtype)
    fill(model, places)
    behind = []
    with ebb.torch.Muon(exact_groups(model), swap=swap, budget="least", tile="16KiB") as opt:
        for step in range(4):
            if step == 2:
                with torch.no_grad():
                    model.up.weight.mul_(0.5)
            if step == 3:
                given = opt.state_dict()
                for one in given["state"].values():
                    one.get("master", one.get("momentum_buffer", one.get("exp_avg"))).mul_(1.5)
                opt.load_state_dict(given)
                behind.append(weights_of(model))
            hand_gradients(model, places, step)
            opt.step()
            behind.append(weights_of(model))
        states = opt.state_dict()["state"]
        behind.append({f"{n} {k}": v for n, one in states.items() for k, v in one.items()})
        if always:
            assert opt._run is not None and opt._run._staging.bytes > 0
        opt.snapshot(wait=True)
    return behind


@row("what is staged has the bits of what is not, edits and loaded states too")
def staged() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plain = trained(f"plain-{dtype}", False, dtype)
            through = trained(f"staged-{dtype}", True, dtype)
        for number, (one, other) in enumerate(zip(plain, through)):
            check_same(one, other, f"{dtype}, step {number}")


if __name__ == "__main__":
    run_rows()
