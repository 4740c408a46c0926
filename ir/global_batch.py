"""Global batches: documents drawn until their tokens first reach the tokens of a step.

The batches of a seed are the same on every machine and whatever their number: batch k depends
on the seed and k alone. They are drawn from a histogram or from the lengths of real
documents.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shardwise.ir.bucket import Bucket
from shardwise.ir.errors import InvalidValueError
from shardwise.ir.length_samples import LengthArray
from shardwise.ir.lengths import Lengths
from shardwise.ir.scanner import shown


def global_batches(
    source: Lengths | LengthArray, tokens_per_step: int, *, count: int, seed: int
) -> tuple[LengthArray, ...]:
    """`count` batches of document lengths, each int64 [documents, dims], in the order drawn.

    `source` is a histogram, or the lengths of real documents [n, dims] as `read_samples`
    gives them (drawn with replacement, those with a length of 0 left out). A batch ends with
    the document that makes its tokens, all dims together, at least `tokens_per_step`. Raises
    InvalidValueError for counts below 1, a negative seed, or no documents with tokens.
    """
    for name, value, least in (
        ("tokens_per_step", tokens_per_step, 1),
        ("count", count, 1),
        ("seed", seed, 0),
    ):
        if type(value) is not int or value < least:
            raise InvalidValueError(
                f"{name} is {shown(value)}; give a whole number of at least {least}"
            )
    documents = source if isinstance(source, Lengths) else _with_tokens(source)
    return tuple(
        _draw(documents, tokens_per_step, np.random.default_rng([seed, index]))
        for index in range(count)
    )


def count_documents(
    batches: Sequence[LengthArray], dims: tuple[str, ...], buckets: Sequence[Bucket]
) -> npt.NDArray[np.int64]:
    """Documents of each batch in each bucket, [batches, buckets + 1]; the last column is the
    rest.

    A document inside several buckets counts in the first. Raises InvalidValueError for other
    dims.
    """
    counts = np.zeros((len(batches), len(buckets) + 1), dtype=np.int64)
    for row, batch in enumerate(batches):
        if batch.ndim != 2 or batch.shape[1] != len(dims):
            raise InvalidValueError(
                f"batch {row} has shape {batch.shape}; give a column for each of {', '.join(dims)}"
            )
        free = np.ones(len(batch), dtype=bool)
        for column, bucket in enumerate(buckets):
            if set(bucket.dims) != set(dims):
                raise InvalidValueError(
                    f"bucket {bucket} has other dims than {', '.join(dims)}; give each a band"
                )
            inside = free.copy()
            for index, dim in enumerate(dims):
                band = bucket.band(dim)
                inside &= (batch[:, index] > band.low) & (batch[:, index] <= band.high)
            counts[row, column] = inside.sum()
            free &= ~inside
        counts[row, -1] = free.sum()
    return counts


def _with_tokens(lengths: LengthArray) -> LengthArray:
    array = np.asarray(lengths)
    if array.ndim != 2 or array.dtype.kind not in "iu" or (array < 0).any():
        raise InvalidValueError(
            f"real documents are {array.dtype} of shape {array.shape}, or negative; give whole "
            "lengths of at least 0, [documents, dims]"
        )
    full = array[(array > 0).all(axis=1)]
    if not len(full):
        raise InvalidValueError("no real document has tokens in every dim; give one or more")
    return full.astype(np.int64)


def _draw(
    source: Lengths | LengthArray, tokens_per_step: int, rng: np.random.Generator
) -> LengthArray:
    mean = source.mean_tokens if isinstance(source, Lengths) else source.sum() / len(source)
    parts: list[LengthArray] = []
    left = tokens_per_step
    while True:
        size = int(min(left, 16 + 1.1 * left / mean))
        if isinstance(source, Lengths):
            part = source.sample(rng, size)
        else:
            part = source[(rng.random(size) * len(source)).astype(np.int64)]
        reached = np.cumsum(part.sum(axis=1))
        if reached[-1] >= left:
            parts.append(part[: int(np.searchsorted(reached, left)) + 1])
            return np.concatenate(parts)
        parts.append(part)
        left -= int(reached[-1])
