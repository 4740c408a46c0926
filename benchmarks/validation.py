"""Prices against published runs: ranking, time, memory and OOM, a row per source.

    python -m benchmarks.validation --validation DIR [--write docs/benchmarks/validation.md]

DIR holds run tables (CSV) with the columns that `shardwise price` reads. Nothing is fitted but the
two scalars of each software profile, on every third group of plans of the stack; times are of the
other groups. `before`: efficiency 1, and the launch floor that the stack's other sources give.
"""

import argparse
import platform
import re
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median

from benchmarks.page import put, table
from benchmarks.validation_runs import (
    LEAST_RUNS,
    NEUTRAL_FLOOR_S,
    Prices,
    Run,
    fitted,
    groups_of,
    load,
    middle,
    ranking,
    training_groups,
    with_scalars,
)
from shardwise.ir.software import SoftwareProfile
from shardwise.planner.price_runs import memory_gb, memory_kind
from shardwise.planner.uniform_price import UniformPrice


@dataclass
class Fits:
    """Software profiles of the stacks, before and after the fit, and what was fitted on."""

    before: dict[tuple[str, str], SoftwareProfile]
    """By stack and source."""
    after: dict[str, SoftwareProfile]
    training: dict[str, set[str]]

    def is_training(self, run: Run) -> bool:
        """Whether a run's group was fitted on."""
        return run.group in self.training[run.stack]


def fit_all(prices: Prices, runs: Sequence[Run]) -> Fits:
    """Fit the scalars of every stack."""
    by_stack: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_stack[run.stack].append(run)
    fits = Fits({}, {}, {})
    for stack, members in sorted(by_stack.items()):
        profile = prices.pricer.machines.software(stack)
        fits.training[stack] = training_groups(members)
        train = [run for run in members if run.group in fits.training[stack]]
        fits.after[stack] = fitted(prices, train, profile)
        for source in sorted({run.source for run in members}):
            others = [run for run in train if run.source != source]
            floor = NEUTRAL_FLOOR_S
            if others:
                floor = fitted(prices, others, profile, (1.0,)).launch_floor_s.value
            fits.before[stack, source] = with_scalars(profile, 1.0, floor)
    return fits


def source_row(prices: Prices, fits: Fits, source: str, runs: Sequence[Run]) -> list[str]:
    """One line of the table of sources."""
    ranks = []
    for members in groups_of(runs).values():
        pairs = [
            (price.step_s, run.measured_s)
            for run in members
            if run.measured_s and (price := prices.price(run, fits.after[run.stack]))
        ]
        if len(pairs) >= LEAST_RUNS:
            ranks.append(ranking(pairs))
    rest = [run for run in runs if not fits.is_training(run)]
    before = prices.errors(rest, lambda run: fits.before[run.stack, run.source])
    after = prices.errors(rest, lambda run: fits.after[run.stack])
    regrets = [rank.regret for rank in ranks]
    return [
        source,
        str(len(runs)),
        str(len(ranks)),
        middle(rank.spearman for rank in ranks),
        middle(rank.concordant for rank in ranks),
        f"{median(regrets):.3f} / {max(regrets):.3f}" if regrets else "",
        _error(before),
        _error(after),
    ]


def _error(errors: Sequence[float]) -> str:
    return f"{median(map(abs, errors)):.1%} ({median(errors):+.1%})" if errors else ""


def memory_rows(prices: Prices, fits: Fits, runs: Sequence[Run]) -> list[list[str]]:
    """Predicted over measured memory by source and kind."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for run in runs:
        if run.measured_gb and (price := prices.price(run, fits.after[run.stack])):
            kind = run.cells["mem_kind"]
            error = memory_gb(price, kind) / run.measured_gb - 1
            found[run.source, memory_kind(kind)].append(error)
    return [
        [
            source,
            kind,
            str(len(errors)),
            f"{median(errors):+.1%}",
            f"{min(errors):+.1%} to {max(errors):+.1%}",
            f"{sum(abs(error) <= 0.1 for error in errors) / len(errors):.0%}",
            f"{sum(error < -0.02 for error in errors) / len(errors):.0%}",
        ]
        for (source, kind), errors in sorted(found.items())
    ]


def oom_rows(prices: Prices, fits: Fits, runs: Sequence[Run]) -> list[list[str]]:
    """Confusion of published runs, and of pairs whose limit is put 5 % under and over a peak."""
    published = {("ran", True): 0, ("ran", False): 0, ("OOM", True): 0, ("OOM", False): 0}
    pairs = dict(published)
    for run in runs:
        price = prices.price(run, fits.after[run.stack])
        if price is None:
            continue
        published["OOM" if run.cells["oom"] == "yes" else "ran", price.fits] += 1
        if run.measured_gb and memory_kind(run.cells["mem_kind"]) != "not said":
            predicted = memory_gb(price, run.cells["mem_kind"])
            pairs["ran", predicted <= 1.05 * run.measured_gb] += 1
            pairs["OOM", predicted <= 0.95 * run.measured_gb] += 1
    return [
        [name, what, str(counts[what, True]), str(counts[what, False])]
        for name, counts in (("published", published), ("pairs at the measured peak", pairs))
        for what in ("ran", "OOM")
    ]


def describe(run: Run, price: UniformPrice) -> str:
    """One run on one line, for people who look for what is wrong."""
    ratio = f"x{price.step_s / run.measured_s:.3f}" if run.measured_s else "-"
    memory = f"{memory_gb(price, run.cells['mem_kind']):.1f} of {run.measured_gb or '-'}"
    return (
        f"{run.name} {run.group[-40:]} {run.read.plan} | {price.step_s:.3f} s of "
        f"{run.measured_s} {ratio}: pipeline {price.pipeline_s:.3f} gradients "
        f"{price.gradients_s:.3f} optimizer {price.optimizer_s:.3f} | memory {memory}: rest "
        f"{price.rest_bytes / 1e9:.1f} kept {price.kept_bytes / 1e9:.1f}"
    )


def report(prices: Prices, fits: Fits, runs: Sequence[Run], refused: dict[str, str]) -> str:
    """All tables."""
    sources = sorted({run.source for run in runs})
    by_source = {source: [run for run in runs if run.source == source] for source in sources}
    scalars = [
        [stack, f"{p.efficiency.value:g}", f"{1e6 * p.launch_floor_s.value:g}",
         str(len(fits.training[stack]))]
        for stack, p in fits.after.items()
    ]  # fmt: skip
    reasons: dict[str, list[str]] = defaultdict(list)
    for name, reason in {**refused, **prices.refused}.items():
        reasons[reason].append(name.rsplit("-", 1)[0])
    missing = [[reason, str(len(names)), ", ".join(sorted(set(names)))]
               for reason, names in sorted(reasons.items())]  # fmt: skip
    parts = [
        "## Ranking and time",
        table(
            ("source", "runs", "groups", "Spearman", "concordant", "regret median / max",
             "time error before", "after the fit"),
            [source_row(prices, fits, source, mine) for source, mine in by_source.items()],
        ),
        "Groups have four runs or more. Errors are medians of |log(predicted / measured)| and, in "
        "brackets, of log(predicted / measured), over groups that were not fitted on.",
        "## Memory",
        table(
            ("source", "kind", "runs", "median error", "range", "within 10 %", "under by over 2 %"),
            memory_rows(prices, fits, runs),
        ),
        "## Out of memory",
        table(("runs", "what happened", "predicted to fit", "not to fit"),
                 oom_rows(prices, fits, runs)),
        "## Fitted scalars",
        table(("stack", "efficiency", "launch floor (microseconds)", "groups"), scalars),
        "## Not priced",
        table(("reason", "runs", "sources"), missing),
    ]  # fmt: skip
    return "\n\n".join(parts)


def write_profiles(fits: Fits, runs: Sequence[Run], folder: Path) -> None:
    """Put fitted scalars into the software profiles that stacks of published runs have."""
    for stack, profile in fits.after.items():
        sources = sorted({run.source for run in runs if run.stack == stack and run.measured_s})
        path = folder / f"{stack}.toml"
        if stack == "torch-cuda" or not sources:
            continue  # what plans of our own are priced with says its own sources
        source = (
            f"published, fitted by benchmarks/validation.py on every third group of the runs of "
            f"{', '.join(sources)}"
        )
        figures = (("efficiency", profile.efficiency), ("launch_floor_s", profile.launch_floor_s))
        text = path.read_text(encoding="utf-8")
        for key, constant in figures:
            line = f'{key} = {{ value = {constant.value:g}, source = "{source}" }}'
            text = re.sub(rf"^{key} = .*$", line, text, flags=re.MULTILINE)
        path.write_text(text, encoding="utf-8")


def main() -> None:
    """Print the tables, or write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--validation", type=Path, required=True)
    parser.add_argument("--only", default="", help="sources whose name contains this")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--profiles", type=Path, help="folder of software profiles to write to")
    parser.add_argument("--rows", action="store_true", help="print every run")
    options = parser.parse_args()
    began = time.process_time()
    runs, refused = load(options.validation)
    runs = [run for run in runs if options.only in run.source]
    prices = Prices()
    fits = fit_all(prices, runs)
    if options.profiles:
        write_profiles(fits, runs, options.profiles)
    text = report(prices, fits, runs, refused)
    if options.rows:
        for run in runs:
            if price := prices.price(run, fits.after[run.stack]):
                print(describe(run, price))
    head = (
        "# Prices against published runs\n\n"
        "Written by `python -m benchmarks.validation --validation DIR --write "
        f"docs/benchmarks/validation.md`, {date.today()}, Python {platform.python_version()}, "
        f"{time.process_time() - began:.0f} s of CPU. What the tables mean and what is missing: "
        "[prices](../prices.md).\n"
    )
    put(f"{head}\n{text}\n", options.write)


if __name__ == "__main__":
    main()
