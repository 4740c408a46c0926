"""Simulated pipelines against the published runs of the zero-bubble paper, arXiv:2401.10241.

    python -m benchmarks.zero_bubble --validation DIR --write docs/benchmarks/zero-bubble.md

DIR holds `zero-bubble-stage-times.csv` (the paper's T_F, T_B, T_W, T_comm of 12 settings) and
`zero-bubble-a100.csv` (its runs: 12 settings, 4 schedules). Nothing is fitted: the simulator gets
the four times and the schedule.
"""

import argparse
import platform
import sys
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.order import in_order
from benchmarks.page import put
from benchmarks.zero_bubble_runs import KINDS, STATE_BYTES, VOCABULARY, Run, read

"""Pairs closer than this are noise (the README of the published runs)."""
TIMES: Final = """
T_F, T_B, T_W and T_comm of the 12 settings of arXiv:2401.10241 (table 9; 8 to 32 A100) go into the
simulator as they are printed, beside the runs of its table 4; nothing is fitted. 1F1B and 1F1B-I
run to the end of the last device, as their optimizer step waits for a global norm; ZB-1p and ZB-2p
do without it, so their step is the longest span of a device. `held` has messages that hold their
receiver (`Transfers.RECEIVER`) in place of messages that travel while devices compute. `idle` is
the part of a step that is not m (T_F + T_B + T_W).
"""
LINES: Final = """
A step as a line in m, through the two largest m: its slope, the seconds of one more micro-batch,
and the rest: fill, drain and optimizer.

- The rest is near that of the simulator, so bubbles are as simulated. It differs most at 28.3B,
  where the three printed digits of throughput leave about 0.1 s open.
- One more micro-batch takes 7 to 10 % longer than T_F + T_B + T_W with ZB-1p and ZB-2p, at every
  size. The simulator has no idle time there, so these seconds are in none of the four profiled
  times. What these files cannot tell apart: time between passes (launches, the host), passes that
  run slower while messages arrive, devices that are not equally fast, and stages of unequal layers
  behind one T_F.
- With 1F1B-I it takes 10 to 17 % longer, and it sends a message for every chunk. With receivers
  held, its ratio of times is near that of the other schedules: those messages are not hidden in
  these runs.
- The optimizer's own time is absent.
"""
MEMORY: Final = """
Walked on the same timelines, for the device that holds most. Per layer and micro-batch
s b h (34 + 5 a s / h) bytes up to B and 32 s b h up to W (the paper's table 1, attention not
fused); layers as the rows say; fp32 logits with the last chunk, and once more in its backward;
12 h^2 weights a layer. Assumptions: {state} bytes a weight, an embedding of {vocabulary} rows on
the first device and one on the last. Nothing is fitted. Absent: the allocator's fragments, buffers
of messages, the context.
"""


def concordant(groups: Sequence[Sequence[tuple[float, float]]]) -> tuple[int, int]:
    """Pairs (published, simulated) of a group that are apart, and those in the same order."""
    counts = [in_order([(simulated, published) for published, simulated in one]) for one in groups]
    return sum(count for count, _ in counts), sum(right for _, right in counts)


def groups_of(runs: Sequence[Run]) -> list[list[Run]]:
    """The four schedules of each setting."""
    return [list(runs[i : i + len(KINDS)]) for i in range(0, len(runs), len(KINDS))]


def time_table(runs: Sequence[Run]) -> Iterator[str]:
    """Rows of all runs."""
    yield (
        "| model | p | m | schedule | published s | simulated s | ratio | held s | ratio "
        "| idle published | idle simulated | over 1F1B published | simulated |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    for group in groups_of(runs):
        base = group[0]
        for run in group:
            yield (
                f"| {run.setting.model} | {run.setting.devices} | {run.setting.micro_batches} "
                f"| {run.schedule} | {run.published_s:.3f} | {run.simulated_s:.3f} "
                f"| {run.ratio:.3f} | {run.receiver_s:.3f} "
                f"| {run.receiver_s / run.published_s:.3f} | {run.idle(run.published_s):.3f} "
                f"| {run.idle(run.simulated_s):.3f} | {base.published_s / run.published_s:.3f} "
                f"| {base.simulated_s / run.simulated_s:.3f} |"
            )


def summary(runs: Sequence[Run]) -> Iterator[str]:
    """Errors per schedule, order, regret."""
    for name in KINDS:
        ratios = [run.ratio for run in runs if run.schedule == name]
        held = [run.receiver_s / run.published_s for run in runs if run.schedule == name]
        yield (
            f"- {name}: simulated over published time {median(ratios):.3f} (median), "
            f"{min(ratios):.3f} to {max(ratios):.3f}; with receivers held {median(held):.3f}, "
            f"{min(held):.3f} to {max(held):.3f}"
        )
    groups = groups_of(runs)
    for what, pick in (("simulated", _simulated), ("with receivers held", _held)):
        pairs, agree = concordant([[(r.published_s, pick(r)) for r in g] for g in groups])
        regret = [
            min(group, key=pick).published_s / min(run.published_s for run in group)
            for group in groups
        ]
        errors = [
            abs(pick(group[0]) / pick(run) / (group[0].published_s / run.published_s) - 1)
            for group in groups
            for run in group[1:]
        ]
        yield (
            f"- {what}: {agree} of {pairs} pairs of schedules over 5 % apart are in the published "
            f"order; regret of the fastest: median {median(regret):.3f}, largest "
            f"{max(regret):.3f}; gain over 1F1B off by {median(errors):.1%} (median), "
            f"{max(errors):.1%} (largest)"
        )


def _simulated(run: Run) -> float:
    return run.simulated_s


def _held(run: Run) -> float:
    return run.receiver_s


def lines_table(runs: Sequence[Run]) -> Iterator[str]:
    """Time as a line in the micro-batches: slope over T_F + T_B + T_W, and what is left."""
    yield (
        "| model | schedule | slope / (T_F + T_B + T_W) published | simulated "
        "| rest s published | simulated |"
    )
    yield "|---|---|---|---|---|---|"
    for model in dict.fromkeys(run.setting.model for run in runs):
        for name in KINDS:
            rows = [r for r in runs if r.setting.model == model and r.schedule == name]
            cells = []
            rests = []
            for seconds in (
                [r.published_s for r in rows],
                [r.simulated_s for r in rows],
            ):
                last, before = rows[-1].setting, rows[-2].setting
                steps = last.micro_batches - before.micro_batches
                slope = (seconds[-1] - seconds[-2]) / steps
                cells.append(f"{slope / last.work_s:.3f}")
                rests.append(f"{seconds[-1] - slope * last.micro_batches:.3f}")
            yield f"| {model} | {name} | {' | '.join(cells)} | {' | '.join(rests)} |"


def memory_table(runs: Sequence[Run]) -> Iterator[str]:
    """Peaks: published beside the walk, for the first setting of each model (m changes none)."""
    yield "| model | schedule | published GB | activations GB | with states GB | ratio |"
    yield "|---|---|---|---|---|---|"
    for group in groups_of(runs)[::3]:
        for run in group:
            yield (
                f"| {run.setting.model} | {run.schedule} | {run.published_gb:.0f} "
                f"| {run.activation_gb:.1f} | {run.total_gb:.1f} "
                f"| {run.total_gb / run.published_gb:.2f} |"
            )


def memory_summary(runs: Sequence[Run]) -> str:
    """Order and error of the peaks."""
    pairs, agree = concordant(
        [[(run.published_gb, run.total_gb) for run in group] for group in groups_of(runs)]
    )
    errors = [run.total_gb / run.published_gb - 1 for run in runs]
    return (
        f"Pairs of schedules over 5 % apart in memory: {agree} of {pairs} in the published order. "
        f"Error: median {median(map(abs, errors)):.1%}, {min(errors):+.1%} to {max(errors):+.1%}."
    )


def page(folder: Path) -> str:
    """The whole page."""
    runs = read(folder)
    states = MEMORY.format(state=STATE_BYTES, vocabulary=VOCABULARY)
    lines = [
        "# Pipeline schedules: simulator and published runs",
        "",
        f"Written by `python -m benchmarks.zero_bubble {' '.join(sys.argv[1:])}` on "
        f"{date.today()}, Python {platform.python_version()}, {platform.machine()}.",
        TIMES,
        *summary(runs),
        "",
        *time_table(runs),
        "",
        "## What is off",
        LINES,
        *lines_table(runs),
        "",
        "## Memory",
        states,
        memory_summary(runs),
        "",
        *memory_table(runs),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--validation", type=Path, required=True)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    put(page(given.validation), given.write)


if __name__ == "__main__":
    main()
