"""The search: exhaustive over the thin menu, exact for its price model.

    minimise  sum_b nbar_b(k_b) t_b  +  copies, reductions and optimizer of a step
    over      mesh (factorisation of the world), parameter scheme, set U of implementations,
              bucket edges from a candidate row, and per bucket (implementation in U, recompute,
              seats)
    s.t.      peak bytes per rank of a full slot of every bucket <= the limit

nbar_b(k) = E[ceil(N_b / k)] is a constant of an option (solvers/slot_counts). Parameter layouts
follow from mesh, scheme and U; for fixed (mesh, scheme, U) buckets are independent, and the
edges are chosen by a dynamic program (planner/edges), so the minimum is exact: the bound is the
plan's own time. One strategy for all layers of a bucket: mixing them within a bucket is not in
this menu.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardwise.ir.cluster import Cluster
from shardwise.ir.errors import InfeasibleError, UnsupportedError
from shardwise.ir.hardware import HardwareProfile
from shardwise.ir.lengths import Lengths
from shardwise.ir.mesh import Mesh
from shardwise.ir.software import SoftwareProfile
from shardwise.ir.strategy import Recompute
from shardwise.ir.traced_model import TracedModel
from shardwise.ir.training import TrainingSpec
from shardwise.planner import menu
from shardwise.planner.candidates import (
    ActivationTable,
    MeshPrograms,
    Option,
    SchemeTable,
    SlotPrice,
    options,
)
from shardwise.planner.edges import Band, best_partition, candidate_edges, edge_multiple
from shardwise.planner.scheme import SCHEMES, Scheme
from shardwise.planner.time_model import Pricer
from shardwise.solvers.slot_counts import SlotCounts, sample_batches


@dataclass(frozen=True)
class Request:
    """What to plan for."""

    traced: TracedModel
    cluster: Cluster
    hardware: HardwareProfile
    software: SoftwareProfile
    training: TrainingSpec
    lengths: Lengths
    tokens_per_step: int
    memory_limit_bytes_per_rank: int


@dataclass(frozen=True)
class Found:
    """A complete answer on one mesh, scheme and set of implementations."""

    table: SchemeTable
    bands: tuple[Band, ...]

    @property
    def step_s(self) -> float:
        """Expected seconds of a step."""
        return sum(band.step_s for band in self.bands) + self.table.fixed_s

    @property
    def peak_bytes(self) -> int:
        """Largest peak over the buckets."""
        return max(band.price.peak_bytes for band in self.bands)

    @property
    def mesh(self) -> Mesh:
        """The mesh of the answer."""
        return self.table.activations.programs.mesh

    @property
    def scheme(self) -> Scheme:
        """The parameter scheme of the answer."""
        return self.table.scheme

    @property
    def used(self) -> tuple[str, ...]:
        """Implementations that some bucket uses."""
        return tuple(sorted({band.option.implementation for band in self.bands}))


@dataclass(frozen=True)
class Shortfall:
    """The least memory that some option of the longest bucket needs, where none fits."""

    needed_bytes: int
    length: int
    table: SchemeTable


class Search:
    """All tables of a request, and the best answer under restrictions."""

    def __init__(self, request: Request) -> None:
        if request.lengths.dims != ("S",):
            raise UnsupportedError(
                f"the histogram has the length dims {', '.join(request.lengths.dims)}: this "
                "version plans for one, S; give the lengths of the dim that dominates"
            )
        self.request = request
        batches = sample_batches(request.lengths, request.tokens_per_step)
        self.edges = candidate_edges(request.lengths, edge_multiple(request.cluster.world_size))
        self.counts = SlotCounts.of(batches, self.edges)
        self.tables = list(self._tables())
        self._found: dict[int, Found | Shortfall] = {}
        self._fits: dict[tuple[int, int], list[Priced]] = {}

    def _tables(self) -> Iterator[SchemeTable]:
        request = self.request
        pricer = Pricer(request.cluster, request.hardware, request.software, request.training)
        hardware = request.hardware
        reserve = int(hardware.context_bytes.value + 3 * hardware.group_bytes.value)
        for mesh in menu.meshes(request.cluster):
            if any(edge % menu.model_size(mesh) for edge in self.edges):
                continue
            programs = MeshPrograms.of(request.traced, mesh, request.training)
            activations = ActivationTable(programs, pricer, request.training)
            for scheme in SCHEMES:
                only_model = scheme.model_axes and not scheme.master
                if only_model and menu.model_size(mesh) == 1:
                    continue
                for names in menu.subsets(menu.implementations(mesh)):
                    yield SchemeTable(activations, scheme, names, reserve)

    def best(self, tables: Sequence[int] | None = None) -> Found | Shortfall:
        """The least expected step among some tables (all by default)."""
        answers = [self._answer(i) for i in (range(len(self.tables)) if tables is None else tables)]
        found = [answer for answer in answers if isinstance(answer, Found)]
        if found:
            return min(found, key=lambda one: one.step_s)
        return min(
            (a for a in answers if isinstance(a, Shortfall)), key=lambda one: one.needed_bytes
        )

    def longest_that_fits(self) -> int:
        """The longest candidate length at which some option of some table fits; 0 for none."""
        lengths = (
            length
            for length in reversed(self.edges[1:])
            if any(self.fitting(table, length) for table in self.tables)
        )
        return next(lengths, 0)

    def fitting(self, table: SchemeTable, length: int) -> list["Priced"]:
        """Options of a table that fit the limit at a length, with their prices."""
        key = (id(table), length)
        if key not in self._fits:
            limit = self.request.memory_limit_bytes_per_rank
            self._fits[key] = list(_fitting(table, length, limit, self.counts))
        return self._fits[key]

    def _answer(self, index: int) -> Found | Shortfall:
        if index not in self._found:
            self._found[index] = self._solve(self.tables[index])
        return self._found[index]

    def _solve(self, table: SchemeTable) -> Found | Shortfall:
        longest = self.edges[-1]
        if not self.fitting(table, longest):
            return _shortfall(table, longest)
        feasible = [_fastest(self.fitting(table, length)) for length in self.edges[1:]]
        slots = self.counts.mean_slots

        def best(low: int, high: int) -> Band | None:
            bands = (
                Band(low, high, option, price, slots(low, high, option.documents_per_slot))
                for option, price in feasible[high - 1]
            )
            return min(bands, key=lambda band: (band.step_s, band.price.time_s), default=None)

        bands = best_partition(len(self.edges), best)
        assert bands is not None, "the last edge has an option, so one band covers all"
        return Found(table, bands)


Priced = tuple[Option, SlotPrice]


def _fastest(fitting: Sequence[Priced]) -> list[Priced]:
    """The fastest option for each number of documents in a slot: the others are dominated."""
    best: dict[int, Priced] = {}
    for option, price in fitting:
        known = best.get(option.documents_per_slot)
        if known is None or price.time_s < known[1].time_s:
            best[option.documents_per_slot] = (option, price)
    return list(best.values())


def _fitting(table: SchemeTable, length: int, limit: int, counts: SlotCounts) -> Iterator[Priced]:
    """Options of a bucket with this longest length that fit; no more seats than documents."""
    most = int(counts.below[:, -1].max())
    mesh = table.activations.programs.mesh
    full: set[tuple[str, Recompute]] = set()
    for option in options(mesh, table.implementations):
        kind = (option.implementation, option.recompute)
        if kind in full:
            continue
        price = table.price(option, length)
        if price.peak_bytes > limit:
            full.add(kind)
            continue
        yield option, price
        if option.documents_per_slot >= most:
            full.add(kind)


def _shortfall(table: SchemeTable, length: int) -> Shortfall:
    mesh = table.activations.programs.mesh
    needed = min(
        table.price(option, length).peak_bytes
        for option in options(mesh, table.implementations)
        if option.seats == 1
    )
    return Shortfall(needed, length, table)


def infeasible(search: Search, short: Shortfall) -> InfeasibleError:
    """The error that says what is short and what is nearest."""
    limit = search.request.memory_limit_bytes_per_rank
    mesh = short.table.activations.programs.mesh
    fits = search.longest_that_fits()
    split = f"split documents at {fits} tokens" if fits else "shorten the documents"
    short_bytes = short.needed_bytes - limit
    return InfeasibleError(
        f"no strategy fits: bucket S(0,{short.length}] needs {short.needed_bytes} bytes per rank "
        f"at least (mesh {mesh}, {short.table.scheme.name}, one document per replica) and the "
        f"limit is {limit}: {short_bytes} bytes short; nearest fixes: raise the limit by that, "
        f"use more ranks, or {split}"
    )
