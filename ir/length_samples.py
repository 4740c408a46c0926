"""Lists of document lengths as arrays: their checks, and edges to make histograms over."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shardwise.ir.bucket import MAX_LENGTH
from shardwise.ir.errors import InvalidValueError
from shardwise.ir.scanner import shown

LengthArray = npt.NDArray[np.int64]


def check_samples(samples: npt.ArrayLike, dims: tuple[str, ...]) -> LengthArray:
    """Document lengths as int64 [n, dims] from [n] (one dim) or [n, dims] whole numbers.

    Raises InvalidValueError for another shape, numbers that are not whole, negative or too
    large ones (naming the first document, counted from 0).
    """
    array = np.asarray(samples)
    if array.ndim == 1 and len(dims) == 1:
        array = array[:, None]
    if array.ndim != 2 or array.shape[1] != len(dims):
        raise InvalidValueError(
            f"document lengths have shape {shown(np.shape(samples))}; give a row per document "
            f"and a column for each of {', '.join(dims)}"
        )
    if not array.shape[0]:
        raise InvalidValueError("there are no document lengths; give one or more")
    if array.dtype.kind not in "iu":
        raise InvalidValueError(
            f"document lengths are of type {array.dtype}; convert them to whole numbers"
        )
    bad = np.argwhere((array < 0) | (array > MAX_LENGTH))
    if bad.size:
        document, dim = bad[0]
        raise InvalidValueError(
            f"document {document} has {dims[dim]} = {array[document, dim]}; lengths go from 0 "
            f"to {MAX_LENGTH}: correct or leave out the document"
        )
    return array.astype(np.int64)


def check_edges(edges: Sequence[int], lengths: LengthArray, dim: str) -> LengthArray:
    """The edges as an array; raises InvalidValueError unless they ascend and hold all
    lengths."""
    values = list(edges)
    whole = all(type(edge) is int and 0 <= edge <= MAX_LENGTH for edge in values)
    if not whole or len(values) < 2 or values != sorted(set(values)):
        raise InvalidValueError(
            f"edges of {dim} are {shown(values)}; give two or more ascending whole numbers"
        )
    array = np.array(values, dtype=np.int64)
    outside = lengths[(lengths <= array[0]) | (lengths > array[-1])]
    if outside.size:
        raise InvalidValueError(
            f"length {outside[0]} of {dim} is outside the edges ({array[0]}, {array[-1]}]; "
            "give edges that hold every length over 0"
        )
    return array


def geometric_edges(largest: int, per_octave: int = 4) -> tuple[int, ...]:
    """Edges 0, 1, 2, 3, ... that grow by 2**(1 / per_octave), powers of two among them.

    The last edge is `largest` (at least 1). Raises InvalidValueError below that.
    """
    if largest < 1 or per_octave < 1:
        raise InvalidValueError(
            f"edges up to {largest}, {per_octave} to an octave; give 1 or more of each"
        )
    edges = {0, largest}
    step = 0
    while True:
        octave, part = divmod(step, per_octave)
        edge = round(2.0 ** (octave + part / per_octave))
        if edge >= largest:
            return tuple(sorted(edges))
        edges.add(edge)
        step += 1
