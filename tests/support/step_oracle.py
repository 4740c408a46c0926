"""Collective steps executed on all ranks at once, as numpy arrays in one process.

Blocks are packed as equal-size collectives need them, and the messages are counted as sent.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shardwise.ir.layout import Layout, Partial, Select
from shardwise.ir.mesh import Mesh
from shardwise.ir.redistribution import CollectiveStep
from tests.support.layout_oracle import (
    Array,
    Indices,
    Shape,
    all_indices,
    combinations,
    indices,
)

_COMBINE = {"sum": np.add, "max": np.maximum, "min": np.minimum}
_NEUTRAL = {"sum": 0.0, "max": -np.inf, "min": np.inf}


def place(whole: Array, layout: Layout, mesh: Mesh, rng: np.random.Generator) -> list[Array]:
    """Local arrays of every rank under `layout`.

    Each choice of coordinates on the axes that hold addends has one global addend, of which the
    ranks with these coordinates hold their parts; together the addends combine to `whole`.
    """
    addend_axes, other_axes = _split_axes(layout, mesh)
    op = _op(layout)
    chosen = list(combinations(mesh, addend_axes))
    held = [_covered(layout, whole.shape, mesh, free, other_axes) for free in chosen]
    rest = whole.copy()
    local: list[Array] = [whole] * mesh.world_size
    for at, free in enumerate(chosen):
        later = np.logical_or.reduce([np.zeros(whole.shape, dtype=bool), *held[at + 1 :]])
        random = rng.integers(0, 9, size=whole.shape).astype(float)
        if op != "sum":
            random = rest - random if op == "max" else rest + random
        addend = np.where(later, random, rest)
        if op == "sum":
            rest = np.where(held[at], rest - addend, rest)
        for fixed in combinations(mesh, other_axes):
            coordinates = {**free, **fixed}
            here = np.ix_(*indices(layout, whole.shape, mesh, coordinates))
            local[mesh.rank(coordinates)] = addend[here]
    return local


def holds(local: Sequence[Array], whole: Array, layout: Layout, mesh: Mesh) -> bool:
    """Whether the ranks hold `whole` under `layout`: copies agree, addends combine to it."""
    addend_axes, other_axes = _split_axes(layout, mesh)
    op = _op(layout)
    total = np.full(whole.shape, _NEUTRAL[op])
    for free in combinations(mesh, addend_axes):
        addend = np.full(whole.shape, np.nan)
        for fixed in combinations(mesh, other_axes):
            coordinates = {**free, **fixed}
            value = local[mesh.rank(coordinates)]
            here = np.ix_(*indices(layout, whole.shape, mesh, coordinates))
            known = addend[here]
            if value.shape != known.shape:
                return False
            if not np.array_equal(np.where(np.isnan(known), value, known), value):
                return False
            addend[here] = value
        neutral = np.where(np.isnan(addend), _NEUTRAL[op], addend)
        total = _COMBINE[op](total, neutral)
    return np.array_equal(total, whole)


def execute(
    step: CollectiveStep, local: Sequence[Array], shape: Shape, mesh: Mesh
) -> tuple[list[Array], int]:
    """Local arrays after the step, and the largest message (bytes) that a rank took part in."""
    before, after = all_indices(step.source, shape, mesh), all_indices(step.target, shape, mesh)
    result = list(local)
    message_bytes = 0
    for group in mesh.groups(step.axes):
        run = {
            "all_gather": _gather, "all_reduce": _reduce, "reduce_scatter": _scatter,
            "all_to_all": _exchange, "slice": _slice, "mask": _mask,
        }[step.kind]  # fmt: skip
        mine = [local[rank] for rank in group]
        made, sent = run(step, mine, [before[r] for r in group], [after[r] for r in group])
        for rank, value, held in zip(group, made, (after[r] for r in group), strict=True):
            assert value.shape == tuple(len(one) for one in held)
            assert not np.isnan(value).any(), f"{step} leaves elements of rank {rank} unset"
            result[rank] = value
        message_bytes = max(message_bytes, sent)
    return result, message_bytes


# --- one group --------------------------------------------------------------------------------

_Made = tuple[list[Array], int]


def _gather(
    step: CollectiveStep, local: list[Array], before: list[Indices], after: list[Indices]
) -> _Made:
    sent = _packed(local)
    made = []
    for held in after:
        value = _unset(held)
        for row, piece, source in zip(sent, local, before, strict=True):
            value[_at(source, held)] = row[: piece.size].reshape(piece.shape)
        made.append(value)
    return made, sent.nbytes


def _reduce(
    step: CollectiveStep, local: list[Array], before: list[Indices], after: list[Indices]
) -> _Made:
    total = _COMBINE[step.op].reduce(np.stack(local))
    return [total.copy() for _ in local], total.nbytes


def _scatter(
    step: CollectiveStep, local: list[Array], before: list[Indices], after: list[Indices]
) -> _Made:
    rows = [
        [value[_at(held, source)] for held in after]
        for value, source in zip(local, before, strict=True)
    ]
    sent = [_packed(row) for row in rows]
    total = _COMBINE[step.op].reduce(np.stack(sent))
    made = [
        row[: piece.size].reshape(piece.shape) for row, piece in zip(total, rows[0], strict=True)
    ]
    return made, sent[0].nbytes


def _exchange(
    step: CollectiveStep, local: list[Array], before: list[Indices], after: list[Indices]
) -> _Made:
    common = [
        [tuple(np.intersect1d(a, b) for a, b in zip(s, t, strict=True)) for t in after]
        for s in before
    ]
    blocks = [
        value[_at(both, source)]
        for value, source, row in zip(local, before, common, strict=True)
        for both in row
    ]
    sent = _packed(blocks)
    made = []
    for receiver, held in enumerate(after):
        value = _unset(held)
        for sender in range(len(local)):
            at = sender * len(after) + receiver
            block = sent[at][: blocks[at].size].reshape(blocks[at].shape)
            value[_at(common[sender][receiver], held)] = block
        made.append(value)
    return made, sent.nbytes // len(local)


def _slice(
    step: CollectiveStep, local: list[Array], before: list[Indices], after: list[Indices]
) -> _Made:
    return [
        value[_at(held, source)] for value, source, held in zip(local, before, after, strict=True)
    ], 0


def _mask(
    step: CollectiveStep, local: list[Array], before: list[Indices], after: list[Indices]
) -> _Made:
    """Each element is counted once: by the first rank that holds it as a value."""
    if _op(step.target) != "sum":
        return list(local), 0
    taken: set[tuple[int, ...]] = set()
    made = []
    for value, source, held in zip(local, before, after, strict=True):
        result = np.zeros([len(one) for one in held])
        places = [list(one) for one in held]
        for at in np.ndindex(value.shape):
            element = tuple(int(one[i]) for one, i in zip(source, at, strict=True))
            if _adds(step.source, step.axes[0]) or element not in taken:
                result[tuple(p.index(e) for p, e in zip(places, element, strict=True))] = value[at]
            taken.add(element)
        made.append(result)
    return made, 0


# --- internals --------------------------------------------------------------------------------


def _split_axes(layout: Layout, mesh: Mesh) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The axes that hold addends, and all others."""
    addends = tuple(name for name, _ in layout.entries if _adds(layout, name))
    return addends, tuple(name for name in mesh.axis_names if name not in addends)


def _covered(
    layout: Layout, shape: Shape, mesh: Mesh, free: dict[str, int], axes: tuple[str, ...]
) -> npt.NDArray[np.bool_]:
    """The elements that any rank with the coordinates `free` holds."""
    covered = np.zeros(shape, dtype=bool)
    for fixed in combinations(mesh, axes):
        covered[np.ix_(*indices(layout, shape, mesh, {**free, **fixed}))] = True
    return covered


def _adds(layout: Layout, name: str) -> bool:
    placement = layout.placement(name)
    return isinstance(placement, Partial) or (isinstance(placement, Select) and placement.partial)


def _op(layout: Layout) -> str:
    return next((p.op for _, p in layout.entries if isinstance(p, Partial)), "sum")


def _at(inner: Indices, outer: Indices) -> tuple[np.ndarray, ...]:
    """Where the indices of `inner` stand in an array that holds those of `outer`."""
    for a, b in zip(inner, outer, strict=True):
        assert np.isin(a, b).all(), "a rank would need what it does not hold"
    return np.ix_(*(np.searchsorted(b, a) for a, b in zip(inner, outer, strict=True)))


def _packed(pieces: Sequence[Array]) -> Array:
    """Pieces as equal rows, padded with nan: no result may hold the padding."""
    rows = np.full((len(pieces), max(piece.size for piece in pieces)), np.nan)
    for row, piece in zip(rows, pieces, strict=True):
        row[: piece.size] = piece.ravel()
    return rows


def _unset(held: Indices) -> Array:
    return np.full([len(one) for one in held], np.nan)
