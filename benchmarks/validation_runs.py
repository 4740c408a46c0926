"""Published runs as they are read, priced and ranked: what benchmarks/validation.py tabulates."""

import csv
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.order import in_order, spearman
from shardwise.ir.curve import Constant
from shardwise.ir.errors import ShardwiseError
from shardwise.ir.software import SoftwareProfile
from shardwise.planner.price_runs import RunPricer
from shardwise.planner.published_row import PublishedRun, read_row
from shardwise.planner.uniform_price import UniformPrice

EFFICIENCIES: Final = tuple(round(1 - 0.05 * step, 2) for step in range(10))
FLOORS_S: Final = (2e-6, 7e-6, 1.5e-5, 3e-5, 4.5e-5, 6e-5, 6.5e-5, 7e-5, 8e-5)
NEUTRAL_FLOOR_S: Final = 7e-6
"""Launch floor where no other source of the same stack says one (configs/software/torch-cuda)."""
MOST_RUNS: Final = 16
LEAST_RUNS: Final = 4
"""Runs of a group that is ranked."""


@dataclass(frozen=True, slots=True)
class Run:
    """A published row and how it is read."""

    source: str
    group: str
    cells: Mapping[str, str]
    read: PublishedRun
    measured_s: float | None
    measured_gb: float | None

    @property
    def name(self) -> str:
        """Its id in the table."""
        return self.cells["run_id"]

    @property
    def stack(self) -> str:
        """Name of its software profile."""
        return self.read.stack.software


def load(folder: Path) -> tuple[list[Run], dict[str, str]]:
    """Rows that can be read, and reasons by run id of the others."""
    runs, refused = [], {}
    for path in sorted(folder.glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            for cells in csv.DictReader(file):
                if "run_id" not in cells or "iter_time_s" not in cells:
                    break
                try:
                    read = read_row(cells)
                except ShardwiseError as error:
                    refused[cells["run_id"]] = str(error)
                    continue
                group = f"{cells['group_id']}|{cells['global_batch']}"
                time_s = float(cells["iter_time_s"]) if cells["iter_time_s"] else None
                memory = float(cells["peak_mem_gb"]) if cells["peak_mem_gb"] else None
                runs.append(Run(path.stem, group, cells, read, time_s, memory))
    return runs, refused


class Prices:
    """Predictions of runs, with the reasons of those that can't be priced."""

    def __init__(self) -> None:
        self.pricer = RunPricer()
        self.refused: dict[str, str] = {}
        self._known: dict[tuple[str, SoftwareProfile], UniformPrice | None] = {}

    def price(self, run: Run, software: SoftwareProfile) -> UniformPrice | None:
        """The price under a software profile, or None; remembered."""
        key = (run.name, software)
        if key not in self._known:
            try:
                self._known[key] = self.pricer.price_run(run.read, software).price
            except ShardwiseError as error:
                self.refused[run.name] = str(error)
                self._known[key] = None
        return self._known[key]

    def errors(
        self, runs: Iterable[Run], software: Callable[[Run], SoftwareProfile]
    ) -> list[float]:
        """log(predicted / measured) of the runs that have a time."""
        return [
            math.log(price.step_s / run.measured_s)
            for run in runs
            if run.measured_s and (price := self.price(run, software(run))) is not None
        ]


def with_scalars(profile: SoftwareProfile, efficiency: float, floor_s: float) -> SoftwareProfile:
    """A profile with other scalars."""
    source = "assumption: a trial of benchmarks/validation.py"
    return replace(
        profile,
        efficiency=Constant(efficiency, "ratio", source),
        launch_floor_s=Constant(floor_s, "s", source),
    )


def fitted(
    prices: Prices,
    runs: Sequence[Run],
    profile: SoftwareProfile,
    efficiencies: Sequence[float] = EFFICIENCIES,
) -> SoftwareProfile:
    """The scalars with the least error on these runs, one after the other, twice.

    The error is the mean over sources of the mean |log(predicted / measured)|; of a source with
    many runs, at most MOST_RUNS spread over it are priced. Of equal ones the least floor wins.
    Without a run that has a time the profile stays as it is.
    """
    by_source: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.measured_s:
            by_source[run.source].append(run)
    if not by_source:
        return profile
    chosen = [members[:: -(-len(members) // MOST_RUNS)] for members in by_source.values()]
    known: dict[tuple[float, float], float] = {}

    def error(pair: tuple[float, float]) -> float:
        if pair not in known:
            trial = with_scalars(profile, *pair)
            means = [
                sum(map(abs, errors)) / len(errors)
                for members in chosen
                if (errors := prices.errors(members, lambda _: trial))
            ]
            known[pair] = round(sum(means) / len(means), 3) if means else 0.0
        return known[pair]

    best = (efficiencies[0], NEUTRAL_FLOOR_S)
    for _ in range(2):
        best = min(((value, best[1]) for value in efficiencies), key=error)
        best = min(((best[0], value) for value in FLOORS_S), key=error)
    return with_scalars(profile, *best)


def groups_of(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs with a time, by group, in the order of their names."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.measured_s:
            groups[run.group].append(run)
    return dict(sorted(groups.items()))


def training_groups(runs: Iterable[Run]) -> set[str]:
    """Every third group: what scalars are fitted on."""
    return set(list(groups_of(runs))[::3])


@dataclass(frozen=True, slots=True)
class Ranking:
    """How a group of plans is ranked."""

    spearman: float
    concordant: float
    """Share of the pairs over 5 % apart that stand in the measured order; nan without any."""
    regret: float
    """Measured time of the plan predicted best over that of the best."""


def ranking(pairs: Sequence[tuple[float, float]]) -> Ranking:
    """Of (predicted, measured) times of one group."""
    predicted, measured = zip(*pairs, strict=True)
    total, right = in_order(pairs)
    regret = min(pairs)[1] / min(measured)
    return Ranking(spearman(predicted, measured), right / total if total else math.nan, regret)


def middle(values: Iterable[float], digits: int = 3) -> str:
    """The median, nan left out; empty without any."""
    known = [value for value in values if value == value]
    return f"{median(known):.{digits}f}" if known else ""
