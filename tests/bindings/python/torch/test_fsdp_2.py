"""More rows of test_fsdp.py."""
import shutil
import torch

from fsdp_runs import (_async_run, _foreign_gradient, _fsdp_run, _late_shard, _load_run,
                       _refused, _save_run, _seconds_of_state, _smaller_world,
                       _state_dict_not_called_by_all, check_part, compare, formula_run, Odd,
                       on_rank)
from worlds import apart, check_same, flat, ranks, row, run_rows, worst


@row("Partial: a parameter's, and a gradient's, are refused by name")
def partial() -> str:
    return "; ".join(ranks(2, _refused, what, limit=25, together=False)[0]
                     for what in ("partial", "replicate"))


@row("a gradient placed otherwise than its parameter is refused by name")
def foreign_gradient() -> str:
    return ranks(2, _foreign_gradient, limit=25, together=False)[0]


@row("a gradient that is None on all ranks, at one step", limit=90)
def none_gradient() -> str:
    def none(what, **options):
        return compare(3, Odd, flat, what, grads_none=True, **options)
    return none("none")


@row("bf16 parameters and gradients, masters and halves, on 3 ranks", limit=90)
def bf16() -> str:
    return "; ".join(compare(3, Odd, flat, masters, dtype=torch.bfloat16, masters=masters)
                     for masters in ("engine", "halves"))


@row("a store of 3 ranks goes on with 2, 4 and 1: states are the same bits", limit=150)
def other_worlds() -> str:
    whole = apart(lambda: formula_run(Odd, None, "whole", 0, 5))
    ranks(3, on_rank, Odd, flat, "swap3", 0, 3, {})
    said = []
    for world in (2, 4, 1):
        shutil.copytree("swap3", f"swap3-{world}")
        if world == 1:
            parts = [apart(lambda: formula_run(Odd, None, "swap3-1", 3, 5, resume="store"))]
        else:
            parts = ranks(world, on_rank, Odd, flat, f"swap3-{world}", 3, 5, dict(resume="store"))
        for r, part in enumerate(parts):
            check_part(part, whole, r, f"3 -> {world}")
        said.append(f"3 -> {world}")
    shutil.copytree("swap3-2", "again")
    parts = ranks(2, on_rank, Odd, flat, "again", 5, 5, dict(resume="store"))
    for r, part in enumerate(parts):
        check_part(part, whole, r, "2 again")
    return ", ".join(said)


@row("a directory for each rank; on another number of ranks they are all named", limit=90)
def own_directories() -> str:
    whole = apart(lambda: formula_run(Odd, None, "whole", 0, 3))
    parts = ranks(2, on_rank, Odd, flat, ["own-0", "own-1"], 0, 2, {})
    parts = ranks(2, on_rank, Odd, flat, ["own-0", "own-1"], 2, 3, dict(resume="store"))
    for r, part in enumerate(parts):
        check_part(part, whole, r, "own directories")
    return ""


@row("a small matrix beside a large one: state_dict() and load are as quick", limit=90)
def small_beside_large() -> str:
    alone = max(ranks(4, _seconds_of_state, (400,)))
    beside = max(ranks(4, _seconds_of_state, (400, 1)))
    took = f"{alone:.3f} s alone, {beside:.3f} s beside a row of 48"
    assert beside <= 10 * alone + 0.3, took
    return took


@row("FSDP2 on 3 ranks beside torch's; killed and resumed on 3: the same bits", limit=120)
def fsdp_trains() -> str:
    theirs = ranks(3, _fsdp_run, "torch", "", 0, 12, {})[0][0]
    mine = ranks(3, _fsdp_run, "ebb", "a", 0, 12, {})
    away = worst(mine[0][0], theirs)
    assert away <= 2e-4, f"losses differ by {away}"
    first = ranks(3, _fsdp_run, "ebb", "b", 0, 6, {})
    shutil.copytree("b", "c")
    second = ranks(3, _fsdp_run, "ebb", "b", 6, 12, dict(resume="store"))
    assert first[0][0] + second[0][0] == mine[0][0], "losses after the resume"
    for r in range(3):
        check_same(second[r][1], mine[r][1], f"rank {r}")
    other = ranks(2, _fsdp_run, "ebb", "c", 6, 12, dict(resume="store"))
    elsewhere = worst(first[0][0] + other[0][0], mine[0][0])
    assert elsewhere <= 1e-4, f"on 2 ranks losses differ by {elsewhere}"
    return f"torch {away:.1e}; on 3 the same bits; on 2 {elsewhere:.1e}"


@row("dcp.save on 3 ranks, dcp.load on 2: the same state, the losses go on", limit=120)
def dcp_between_worlds() -> str:
    want, saved = ranks(3, _save_run, "ebb", 6, 10)[0]
    said = []
    for opened in (True, False):
        got, loaded = ranks(2, _load_run, "ebb", 6, 10, opened)[0]
        check_same(loaded, saved, f"states, opened {opened}")
        away = worst(got, want)
        assert away <= 1e-4, f"losses differ by {away}"
        said.append(f"{away:.1e}")
    return ", ".join(said)


@row("a DCP of Ebb's goes on under torch.optim, one of torch.optim's under Ebb", limit=120)
def dcp_both_directions() -> str:
    want, _ = ranks(3, _save_run, "ebb", 6, 10)[0]
    got, _ = ranks(2, _load_run, "torch", 6, 10)[0]
    there = worst(got, want)
    assert there <= 2e-4, f"under torch.optim: {there}"
    shutil.rmtree("saved")
    want, saved = ranks(2, _save_run, "torch", 6, 10)[0]
    got, loaded = ranks(3, _load_run, "ebb", 6, 10)[0]
    check_same(loaded, saved, "states of torch.optim")
    back = worst(got, want)
    assert back <= 2e-4, f"under Ebb: {back}"
    return f"to torch {there:.1e}, from torch {back:.1e}"


@row("states held over later steps and state_dicts keep their bits (async saves)")
def held() -> str:
    ranks(2, _async_run)
    return ""


@row("parameters replaced by shards after the optimizer was made")
def late_shard() -> str:
    ranks(2, _late_shard)
    return ""


@row("a mesh that is a part of the world (pipeline stages), process_group said", limit=60)
def smaller_world() -> str:
    ranks(4, _smaller_world)
    return ""


@row("state_dict() of shards on one rank alone ends within the peer limit")
def lonely_state_dict() -> str:
    return ranks(2, _state_dict_not_called_by_all, together=False)[0]


if __name__ == "__main__":
    run_rows()
