"""Pieces of a rank's tensor: cut where layouts cut it, packed for a message, joined again.

A cut is a placement with the number of ranks on its axis; of nested cuts the first is the slowest.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import torch

from shardwise.ir.layout import Layout, Select, Shard
from shardwise.ir.placement import positions

Shape = tuple[int, ...]
Cut = Shard | Select


def cut_of(layout: Layout, axis: str) -> Cut:
    """How a layout cuts on an axis, which it does."""
    placement = layout.placement(axis)
    assert isinstance(placement, Shard | Select), f"{layout} does not cut on {axis}"
    return placement


@lru_cache(maxsize=1 << 14)
def _intervals(cut: Cut, length: int, ranks: int, place: int) -> tuple[tuple[int, int], ...]:
    return positions(cut, length, place, ranks).intervals


def take(x: torch.Tensor, cut: Cut, ranks: int, place: int) -> torch.Tensor:
    """The piece at `place`: a view where it is one interval."""
    dim, length = cut.dim, x.shape[cut.dim]
    parts = [
        x.narrow(dim, start, stop - start) for start, stop in _intervals(cut, length, ranks, place)
    ]
    if not parts:
        return x.narrow(dim, 0, 0)
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def split(x: torch.Tensor, cuts: Sequence[tuple[Cut, int]]) -> list[torch.Tensor]:
    """Pieces for all places of nested cuts, the first cut slowest."""
    if not cuts:
        return [x]
    (cut, ranks), rest = cuts[0], cuts[1:]
    return [piece for place in range(ranks) for piece in split(take(x, cut, ranks, place), rest)]


def _piece_shape(full: Shape, cut: Cut, ranks: int, place: int) -> Shape:
    length = sum(b - a for a, b in _intervals(cut, full[cut.dim], ranks, place))
    return (*full[: cut.dim], length, *full[cut.dim + 1 :])


def piece_shapes(full: Shape, cuts: Sequence[tuple[Cut, int]]) -> list[Shape]:
    """Shapes of the pieces that `split` makes of a tensor of shape `full`."""
    if not cuts:
        return [full]
    (cut, ranks), rest = cuts[0], cuts[1:]
    return [
        shape
        for place in range(ranks)
        for shape in piece_shapes(_piece_shape(full, cut, ranks, place), rest)
    ]


def join(
    pieces: Sequence[torch.Tensor], full: Shape, cuts: Sequence[tuple[Cut, int]]
) -> torch.Tensor:
    """The inverse of `split`: a tensor of shape `full` from the pieces of nested cuts."""
    if not cuts:
        return pieces[0]
    if all(_is_plain(one) and one.dim == cuts[0][0].dim for one, _ in cuts):
        return torch.cat(list(pieces), cuts[0][0].dim)
    (cut, ranks), rest = cuts[0], cuts[1:]
    each = len(pieces) // ranks
    parts = [
        join(pieces[i * each : (i + 1) * each], _piece_shape(full, cut, ranks, i), rest)
        for i in range(ranks)
    ]
    if _is_plain(cut):
        return torch.cat(parts, cut.dim)
    result = parts[0].new_empty(full)
    for place, part in enumerate(parts):
        place_into(result, part, cut, ranks, place)
    return result


def _is_plain(cut: Cut) -> bool:
    """Whether the pieces of a cut, one after the other, are the whole."""
    return isinstance(cut, Shard) and cut.outer == 1 and not cut.sections


def place_into(whole: torch.Tensor, part: torch.Tensor, cut: Cut, ranks: int, place: int) -> None:
    """Copy the part of one place to where it lies in the whole."""
    at = 0
    for start, stop in _intervals(cut, whole.shape[cut.dim], ranks, place):
        whole.narrow(cut.dim, start, stop - start).copy_(part.narrow(cut.dim, at, stop - start))
        at += stop - start


def pack(pieces: Sequence[torch.Tensor], largest: int) -> torch.Tensor:
    """[pieces, largest]: each piece flat, padded with zeros at the end."""
    if len(pieces) == 1 and pieces[0].numel() == largest:
        return pieces[0].contiguous().reshape(1, largest)
    is_full = all(piece.numel() == largest for piece in pieces)
    make = pieces[0].new_empty if is_full else pieces[0].new_zeros
    packed = make(len(pieces), largest)
    for row, piece in zip(packed, pieces, strict=True):
        row[: piece.numel()].view(piece.shape).copy_(piece)
    return packed


def unpack(row: torch.Tensor, shape: Shape) -> torch.Tensor:
    """A piece of `shape` from a row of what `pack` made: a view without the padding."""
    return row.reshape(-1)[: prod(shape)].view(shape)
