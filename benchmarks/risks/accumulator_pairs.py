"""Every pair of layouts of one parameter, on real ranks: `lower` against whole tensors."""

from __future__ import annotations

from itertools import permutations

import torch

from benchmarks.risks.accumulator_collectives import Communicator, Cut, apply_steps, slice_to
from benchmarks.risks.accumulator_layout import Layout, lower


def ordered_layouts(names: tuple[str, ...]) -> tuple[Layout, ...]:
    """Every layout over the axes: ordered cuts, any subset of the rest Partial."""
    result = []
    for count in range(len(names) + 1):
        for shards in permutations(names, count):
            rest = [name for name in names if name not in shards]
            for mask in range(2 ** len(rest)):
                partial = [name for bit, name in enumerate(rest) if mask >> bit & 1]
                result.append(Layout(shards, tuple(sorted(partial))))
    return tuple(result)


def check_pairs(communicator: Communicator, cut: Cut) -> tuple[int, float]:
    """Number of pairs (source, target) and the largest error over them.

    A source is built from addends that differ by the coordinates on its Partial axes only. The
    result is summed over the Partial axes of the target and compared with the slice of the sum.
    """
    mesh, rank = communicator.mesh, communicator.rank
    shape = [3, 3]
    shape[cut.dim] = cut.size
    worst, pairs = 0.0, 0
    layouts = ordered_layouts(mesh.names)
    for source in layouts:
        addends = {}
        for member in range(mesh.world_size):
            coordinates = mesh.coordinates(member)
            key = tuple(coordinates[axis] for axis in source.partial)
            seed = int("1" + "".join(map(str, key)))
            generator = torch.Generator().manual_seed(seed)
            addends[key] = torch.randn(shape, generator=generator, dtype=torch.float64)
        mine = tuple(mesh.coordinates(rank)[axis] for axis in source.partial)
        whole = torch.stack(list(addends.values())).sum(0)
        held = slice_to(addends[mine], mesh, source, cut, rank)
        for target in layouts:
            moved = apply_steps(communicator, lower(source, target), held, cut, "check")
            if target.partial:
                moved = communicator.all_reduce(moved, target.partial, "check")
            expected = slice_to(whole, mesh, target, cut, rank)
            if moved.shape != expected.shape:
                raise AssertionError(f"{source} -> {target}: shape {tuple(moved.shape)}")
            if moved.numel():
                worst = max(worst, float((moved - expected).abs().max()))
            pairs += 1
    return pairs, worst
