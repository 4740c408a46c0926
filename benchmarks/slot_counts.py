"""E[ceil(N_b / k)], the slots of the planner's objective, against the real batcher.

    python benchmarks/slot_counts.py --write docs/benchmarks/slot-counts.md

For every file of configs/lengths: five buckets of the planner's candidate edges, documents per
slot that shrink with length. `formula` is what the search uses (256 sampled batches); `same` counts
slots of the batcher without filling on those batches and must be equal; `fresh` does so on 256
other batches, with the difference in standard errors; `filled` is the batcher as it trains, with
empty seats given to shorter documents. The two naive forms stand beside: E[N]/k and ceil(E[N]/k).
"""

import argparse
import platform
import sys
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.page import put
from shardwise.ir.lengths import Lengths
from shardwise.ir.lengths_file import read_lengths
from shardwise.planner.edges import candidate_edges
from shardwise.solvers.batcher import BucketShape, batch_slots
from shardwise.solvers.slot_counts import SlotCounts, sample_batches

BUCKETS: Final = 5
DOCUMENTS_PER_SLOT: Final = (64, 32, 16, 4, 1)
FRESH_SEED: Final = 7
TOKENS_PER_STEP: Final = 2**20
HEADER: Final = (
    "| lengths | bucket | k | E[N] | formula | same | fresh | apart | filled "
    "| E[N]/k | ceil(E[N]/k) |"
)


def counted(
    batches: Sequence[npt.NDArray[np.int64]], edges: Sequence[int], *, fill: bool
) -> npt.NDArray[np.int64]:
    """[batches, buckets] slots of the real batcher."""
    shapes = [
        BucketShape(low, high, 1, k, (high,))
        for low, high, k in zip(edges, edges[1:], DOCUMENTS_PER_SLOT, strict=False)
    ]
    result = np.zeros((len(batches), len(shapes)), dtype=np.int64)
    for row, batch in enumerate(batches):
        for slot in batch_slots(batch.tolist(), shapes, fill=fill):
            result[row, slot.bucket] += 1
    return result


def tokens_of(lengths: Lengths) -> int:
    """2**20, or 16 of the longest documents where they are longer."""
    return max(TOKENS_PER_STEP, 16 * lengths.largest()["S"])


def chosen_edges(lengths: Lengths) -> tuple[int, ...]:
    """0 and five of the planner's candidates, evenly, the last among them."""
    row = candidate_edges(lengths, 64)[1:]
    places = sorted({round((i + 1) * len(row) / BUCKETS) - 1 for i in range(BUCKETS)})
    return (0, *(row[place] for place in places))


def rows(path: Path) -> Iterator[str]:
    """Table rows of one file; AssertionError where the formula is not what the batcher does."""
    lengths = read_lengths(path)
    edges, tokens = chosen_edges(lengths), tokens_of(lengths)
    batches = sample_batches(lengths, tokens)
    fresh_batches = sample_batches(lengths, tokens, seed=FRESH_SEED)
    counts = SlotCounts.of(batches, edges)
    same = counted(batches, edges, fill=False)
    fresh = counted(fresh_batches, edges, fill=False)
    filled = counted(fresh_batches, edges, fill=True)
    for i, k in enumerate(DOCUMENTS_PER_SLOT[: len(edges) - 1]):
        formula, documents = counts.mean_slots(i, i + 1, k), counts.mean_documents(i, i + 1)
        assert abs(formula - same[:, i].mean()) < 1e-9, (path, i)
        error = np.sqrt(same[:, i].var() / len(same) + fresh[:, i].var() / len(fresh))
        apart = abs(formula - fresh[:, i].mean()) / error if error else 0.0
        yield (
            f"| {path.stem} | ({edges[i]}, {edges[i + 1]}] | {k} | {documents:.2f} | {formula:.3f} "
            f"| {same[:, i].mean():.3f} | {fresh[:, i].mean():.3f} | {apart:.1f} "
            f"| {filled[:, i].mean():.3f} | {documents / k:.3f} | {np.ceil(documents / k):.0f} |"
        )


def page(folder: Path) -> str:
    """The whole page."""
    body = [row for path in sorted(folder.glob("*.csv")) for row in rows(path)]
    head = [
        "# Slots of a step: formula and batcher",
        "",
        f"Written by `{' '.join(['python', *sys.argv])}` on {date.today()}, "
        f"Python {platform.python_version()}, {platform.machine()}.",
        "",
        *(__doc__ or "").strip().split("\n\n")[2].splitlines(),
        "A global batch has 2**20 tokens, or 16 times the longest document where that is more.",
        "`apart` is the difference of `formula` and `fresh` in standard errors.",
        "",
        HEADER,
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *body]) + "\n"


def main() -> None:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=Path, default=Path("configs/lengths"))
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    put(page(given.lengths), given.write)


if __name__ == "__main__":
    main()
