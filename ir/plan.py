"""Plan: the answer of the planner, all that the runtime needs, as one checked frozen value.

Shared by all buckets are the mesh, the pipeline cuts and the parameter choices; switched from
bucket to bucket are strategies and micro-batch sizes (design, sections 1 and 4). A plan is
data: nothing in it is executed. Its file is read and written by `shardwise.ir.plan_file`, its
text for people by `shardwise.ir.plan_text`, and what makes it legal stands in
`shardwise.ir.plan_rules`.
"""

import re
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Final

from shardwise.ir.bucket_plan import BucketPlan
from shardwise.ir.certificate import Baseline, LongDocuments, Menu, PricedFor, Status
from shardwise.ir.errors import FileFormatError, InvalidValueError, MismatchError, ParseError
from shardwise.ir.fingerprint import ModelFingerprint
from shardwise.ir.mesh import Mesh
from shardwise.ir.parameter_choice import ParameterChoice
from shardwise.ir.plan_json import plan_digest, plan_to_text
from shardwise.ir.plan_rules import check_plan
from shardwise.ir.scanner import made, shown
from shardwise.ir.strategy import Role, Strategy
from shardwise.ir.training import TrainingSpec

VERSION: Final = 1
"""Version of the plan file that this shardwise reads and writes."""

_STAGE: Final = re.compile(r"(0|[1-9][0-9]{0,8}):([1-9][0-9]{0,8})")


@dataclass(frozen=True, slots=True)
class Stage:
    """The units of one pipeline stage. Text: `0:9`. Raises InvalidValueError where empty."""

    start: int
    """Index of its first unit."""
    stop: int
    """One past its last unit."""

    def __post_init__(self) -> None:
        ints = type(self.start) is int and type(self.stop) is int
        if not ints or not 0 <= self.start < self.stop < 10**9:
            raise InvalidValueError(
                f"stage {shown(self.start)}:{shown(self.stop)} is empty; give the first unit "
                "and one past the last"
            )

    def __str__(self) -> str:
        return f"{self.start}:{self.stop}"

    @classmethod
    def parse(cls, text: str) -> "Stage":
        """The stage that prints as `text`; raises ParseError."""
        found = _STAGE.fullmatch(text) if type(text) is str else None
        if found is None:
            raise ParseError(f"cannot parse {shown(text)} as a stage: expected a form like '0:9'")
        return made(text, cls, int(found[1]), int(found[2]))


@dataclass(frozen=True, slots=True)
class Plan:
    """How one model trains on one cluster over one distribution of lengths.

    Invariants: those of `plan_rules.RULES`. What has no order of its own (groups, parameters,
    strategies) is kept sorted, so equal plans are equal values with one digest. `str(plan)` is
    the text of its file, `parse` reads it back. Raises InvalidValueError, `at <JSON path>:
    ...`.
    """

    _: KW_ONLY
    model: ModelFingerprint
    training: TrainingSpec
    mesh: Mesh
    groups: tuple[tuple[str, ...], ...]
    """Axes of each process group to create, in the order in which a gather concatenates; a
    rank is in one group per entry, in 12 at most."""
    stages: tuple[Stage, ...]
    """One per coordinate of the axis `stage` (one without it); together all units."""
    parameters: tuple[ParameterChoice, ...]
    """Every parameter name at most once."""
    strategies: tuple[tuple[str, Strategy], ...]
    """(id, strategy) of every strategy that some bucket uses."""
    buckets: tuple[BucketPlan, ...]
    """Ascending and disjoint, in the same dims."""
    step_s: float
    """Expected seconds of a step: E[step] of the design, without seat filling."""
    bound_s: float
    """No plan of the menu and price model has a smaller expected step."""
    gap: float
    """step_s / bound_s - 1."""
    status: Status
    menu: Menu
    menu_strategies: int
    """Number of strategies in the menu."""
    covers: str
    """The sentence that says what the bound covers."""
    baselines: tuple[Baseline, ...]
    free_switching_price: float
    """Expected step of this plan / of the best plan of each bucket on its own; >= 1."""
    priced_for: PricedFor
    long_documents: LongDocuments = LongDocuments.ERROR
    version: int = VERSION

    def __post_init__(self) -> None:
        check_plan(self)
        order = self.mesh.axis_names.index
        for name, value in (
            ("groups", sorted(self.groups, key=lambda group: [*map(order, group)])),
            ("parameters", sorted(self.parameters, key=lambda choice: choice.pattern)),
            ("strategies", sorted(self.strategies, key=lambda entry: entry[0])),
        ):
            object.__setattr__(self, name, tuple(value))
        for name in ("step_s", "bound_s", "gap", "free_switching_price"):
            object.__setattr__(self, name, float(getattr(self, name)) + 0.0)  # no -0.0

    def __str__(self) -> str:
        return plan_to_text(self)

    @classmethod
    def parse(cls, text: str) -> "Plan":
        """The plan that prints as `text`; raises ParseError."""
        from shardwise.ir.plan_file import loads  # only the file edge loads pydantic

        if type(text) is not str:
            raise ParseError(f"cannot parse {shown(text)} as a plan: give the text of a plan file")
        try:
            return loads(text.encode("utf-8", "surrogatepass"))
        except FileFormatError as error:
            raise ParseError(str(error)) from None

    @classmethod
    def load(cls, path: str | Path) -> "Plan":
        """`plan_file.load`: the plan of a file; raises FileFormatError."""
        from shardwise.ir.plan_file import load

        return load(path)

    def save(self, path: str | Path) -> None:
        """`plan_file.save`: write the file at once or not at all; raises ShardwiseError."""
        from shardwise.ir.plan_file import save

        save(self, path)

    def explain(self) -> str:
        """The plan for people, as `shardwise explain` prints it (`plan_text.render`)."""
        from shardwise.ir.plan_text import render

        return render(self)

    def digest(self) -> str:
        """The plan hash: 64 hex digits over the canonical text; equal for equal plans only."""
        return plan_digest(self)

    def strategy(self, strategy_id: str) -> Strategy:
        """The strategy of that id; raises InvalidValueError where there is none."""
        for known, strategy in self.strategies:
            if known == strategy_id:
                return strategy
        raise InvalidValueError(
            f"the plan has no strategy {shown(strategy_id)}: use one of "
            f"{', '.join(known for known, _ in self.strategies)}"
        )

    def unit_strategies(self, bucket: BucketPlan) -> tuple[str, ...]:
        """The id of the strategy of every unit of the model under `bucket`, in order."""
        return tuple(run.strategy for run in bucket.runs for _ in range(run.count))

    def replica(self, bucket: int, rank: int) -> int:
        """A rank's place among the replicas of a bucket: its batch axes, the first slowest."""
        strategy = self.strategy(self.buckets[bucket].runs[0].strategy)
        places, replica = self.mesh.coordinates(rank), 0
        for axis in self.mesh.axes:
            if strategy.role(axis.name) is Role.BATCH:
                replica = replica * axis.size + places[axis.name]
        return replica

    def check_model(self, fingerprint: ModelFingerprint) -> None:
        """Raise MismatchError, naming what differs, unless the plan is for this model."""
        differences = self.model.differences(fingerprint)
        if differences:
            raise MismatchError(
                f"at model: the plan is for {shown(self.model.name)} and this is "
                f"{shown(fingerprint.name)}, which differ in {'; '.join(differences)}; load "
                "the plan of this model, or price it again with `shardwise plan --reprice`"
            )

    def check_world(self, world_size: int) -> None:
        """Raise MismatchError unless `world_size` is the number of ranks of the mesh."""
        if world_size != self.mesh.world_size:
            raise MismatchError(
                f"at mesh: the plan is for {self.mesh.world_size} ranks ({self.mesh}) and "
                f"{world_size} run; start it on {self.mesh.world_size} (torchrun --nnodes, "
                f"--nproc-per-node), or make a plan for {world_size} with `shardwise plan`"
            )
