"""The closing lines of a run."""

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardwise.runtime.train import Trainer


def summary(trainer: "Trainer") -> str:
    """What was trained, what was executed, predicted against measured time and peak."""
    totals = trainer.totals
    lines = [
        f"trained {totals.steps} steps, {totals.documents} documents, {totals.tokens} tokens; loss "
        f"{totals.losses[0]:.4f} -> {totals.losses[-1]:.4f}",
        f"corpus: {trainer.corpus.describe()}",
        "slots executed: " + ", ".join(f"{n} x {name}" for name, n in sorted(totals.slots.items())),
        f"{totals.switches} switches, {totals.switch_bytes} bytes moved by them",
    ]
    ratios = [p / m for p, m in zip(totals.predicted_s, totals.step_s, strict=True)]
    lines.append(
        f"time: predicted {sum(totals.predicted_s):.2f} s, measured {sum(totals.step_s):.2f} s "
        f"(median predicted/measured of a step {median(ratios):.2f})"
    )
    predicted = max(bucket.largest_peak_bytes() for bucket in trainer.plan.buckets)
    measured = trainer.meter.largest
    lines.append(
        f"peak per rank: predicted {predicted / 1e6:.0f} MB, measured "
        + ("unknown here" if measured is None else f"{measured / 1e6:.0f} MB")
    )
    return "\n".join(lines)
