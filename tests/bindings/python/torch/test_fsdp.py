"""Sharded parameters: the same bits as one process, whatever the placement; torch's checkpoints."""


from functools import partial

from fsdp_runs import (columns, compare, expert_boxes, expert_groups, expert_rows, Experts,
                       formula_run, Odd, OddExperts, tp_alone, tp_fsdp, Two, Uneven)
from worlds import apart, flat, hsdp, row, run_rows


@row("FSDP2 on 2, 3 and 4 ranks: uneven, empty, 1 row, 1-d: bits of one process", limit=120)
def fsdp() -> str:
    whole = apart(lambda: formula_run(Odd, None, "whole", 0, 3))
    return "; ".join(compare(world, Odd, flat, f"{world}", whole=whole) for world in (2, 3, 4))


@row("FSDP2, whole matrices at owners, least budget, small tiles: the same bits", limit=120)
def fsdp_ways() -> str:
    whole = apart(lambda: formula_run(Odd, None, "whole", 0, 3))
    said = []
    for what, options in (("owner", dict(placement="owner")),
                          ("least", dict(budget="least", tile="4KiB", slots=2)),
                          ("threads", dict(threads=2, chunk="64KiB"))):
        said.append(compare(3, Odd, flat, what, whole=whole, **options))
    return "; ".join(said)


@row("HSDP 2 x 2: bits of one process", limit=90)
def hybrid() -> str:
    whole = apart(lambda: formula_run(Odd, None, "whole", 0, 3))
    return "; ".join([compare(4, Odd, hsdp, "shard", whole=whole),
                      compare(4, Odd, hsdp, "owner", whole=whole, placement="owner")])


@row("plain tensors on 2 and 3 ranks (DDP): bits of one process", limit=90)
def plain() -> str:
    def nothing(model):
        pass
    whole = apart(lambda: formula_run(Odd, None, "whole", 0, 3))
    return "; ".join([compare(2, Odd, nothing, "2", whole=whole),
                      compare(3, Odd, nothing, "3", whole=whole, placement="shard"),
                      compare(2, Odd, nothing, "2least", whole=whole, budget="least",
                              tile="4KiB")])


@row("TP x FSDP on 2 x 2: strided rows, columns, what TP leaves whole", limit=90)
def tensor_parallel() -> str:
    return compare(4, Two, tp_fsdp, "tp x fsdp")


@row("TP alone on 2: DTensors beside plain ones", limit=90)
def tensor_parallel_alone() -> str:
    return compare(2, Two, tp_alone, "tp")


@row("FSDP2 with Shard(1) beside Shard(0)", limit=90)
def by_columns() -> str:
    return compare(2, Two, columns, "columns")


@row("experts cut over ep, then by rows over efsdp", limit=90)
def experts() -> str:
    return compare(4, Experts, expert_rows, "experts", groups=expert_groups)


@row("TP that does not divide", limit=90)
def uneven_tensor_parallel() -> str:
    return compare(2, Uneven, tp_alone, "uneven")


@row("experts cut over ep and efsdp by another dimension, uneven ones too", limit=240)
def experts_by_two() -> str:
    muon = partial(expert_groups, of_experts="muon")
    said = []
    for what, make, dims, groups in (("01", Experts, (0, 1), expert_groups),
                                     ("odd01", OddExperts, (0, 1), muon),
                                     ("odd02", OddExperts, (0, 2), muon),
                                     ("odd12", OddExperts, (1, 2), expert_groups)):
        said.append(compare(4, make, partial(expert_boxes, dims), what, groups=groups))
    said.append(compare(4, OddExperts, partial(expert_boxes, (0, 2)), "owner", groups=muon,
                        placement="owner"))
    return "; ".join(said)


if __name__ == "__main__":
    run_rows()
