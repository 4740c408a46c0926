"""Slots of the quickstart's model on this rank, priced and run: see predicted_vs_measured."""

import json
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from shardwise.ir.bucket import Band, Bucket
from shardwise.ir.bucket_plan import BucketPlan, PaddedShape, StrategyRun
from shardwise.ir.certificate import LongDocuments, Menu, PricedFor, Status
from shardwise.ir.config_files import load_hardware, load_software
from shardwise.ir.config_write import hardware_toml, software_toml
from shardwise.ir.mesh import Mesh
from shardwise.ir.plan import Plan, Stage
from shardwise.ir.prices import Prices
from shardwise.ir.strategy import Recompute
from shardwise.ir.trace_language import trace_language_model
from shardwise.ir.trace_models import load_model
from shardwise.ir.traced_model import TracedModel
from shardwise.ir.training import TrainingSpec
from shardwise.planner import menu
from shardwise.planner.candidates import ActivationTable, MeshPrograms, Option, SchemeTable
from shardwise.planner.scheme import SCHEMES
from shardwise.planner.time_model import Pricer
from shardwise.runtime.memory import PeakMeter
from shardwise.runtime.profile_command import cluster_of_ranks, measure
from shardwise.runtime.profile_samples import FAST, SHARED, Figure, Session, shared_by_others
from shardwise.runtime.program import Program
from shardwise.runtime.ranks import connected

MODEL: Final = "hf:configs/models/tiny-llama.json"
LONGEST: Final = 8192
SLOTS: Final = 4
"""Of a step that is compared."""


@dataclass(frozen=True)
class Point:
    """One slot, or the end of a step, of one kind."""

    implementation: str
    scheme: str
    recompute: str
    length: int
    documents: int
    compute_s: float
    """Predicted, as the profile says."""
    messages_s: float
    """Predicted."""
    pace: float
    """How long the same work took beside the slots, over how long it took in the profile."""
    measured_s: float
    spread: float
    end_compute_s: float
    """Of what a step does beside its slots: the optimizer."""
    end_messages_s: float
    """The same: step-long copies and the reductions that waited."""
    measured_end_s: float
    predicted_live: int
    """Bytes that a slot adds to what rests, at its peak."""
    measured_live: int
    measured_vm: int
    """VmHWM over VmRSS before the slot."""

    @property
    def predicted_s(self) -> float:
        """Of the slot, computing at the pace of the moment."""
        return self.compute_s * self.pace + self.messages_s

    @property
    def predicted_end_s(self) -> float:
        """Of the step's end, computing at the pace of the moment."""
        return self.end_compute_s * self.pace + self.end_messages_s

    @property
    def predicted_step_s(self) -> float:
        """Of a step of SLOTS such slots."""
        return SLOTS * self.predicted_s + self.predicted_end_s

    @property
    def measured_step_s(self) -> float:
        """Of a step of SLOTS such slots."""
        return SLOTS * self.measured_s + self.measured_end_s

    @property
    def ratio(self) -> float:
        """Predicted over measured seconds."""
        return self.predicted_s / self.measured_s


class Live(TorchDispatchMode):
    """Bytes of storages made while it is on, and their peak; below autograd, so of all passes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.note(result, (args, kwargs))
        return result

    def note(self, result: Any, given: Any) -> None:
        """Count the storages of a result that are new; those of `given` are not."""
        inputs = {
            item.untyped_storage()._cdata
            for item in torch.utils._pytree.tree_leaves(given)
            if isinstance(item, torch.Tensor)
        }
        for item in torch.utils._pytree.tree_leaves(result):
            if isinstance(item, torch.Tensor):
                storage = item.untyped_storage()
                key = storage._cdata
                if key not in inputs and key not in self._known:
                    self._known.add(key)
                    self.now += storage.nbytes()
                    weakref.finalize(storage, self._gone, key, storage.nbytes())
        self.peak = max(self.peak, self.now)

    def _gone(self, key: int, size: int) -> None:
        self.now -= size
        self._known.discard(key)


@dataclass
class Kind:
    """A program under test: one implementation under one scheme, both kinds of recomputation."""

    implementation: str
    table: SchemeTable
    program: Program
    degree: int
    optimizer: torch.optim.Optimizer


def by_hand(
    traced: TracedModel, mesh: Mesh, implementation: str, table: SchemeTable, training: TrainingSpec
) -> Plan:
    """A plan of two buckets, without and with recomputation; its prices are not read."""
    strategies, buckets = [], []
    for low, high, again in ((0, 1, Recompute.NONE), (1, LONGEST, Recompute.LAYER)):
        strategy = menu.strategy(implementation, mesh, again)
        name = f"{implementation}.{again}"
        strategies.append((name, strategy))
        buckets.append(
            BucketPlan(
                Bucket((Band("S", low, high),)),
                mesh.group_size(tuple(a for a, role in strategy.roles if role == "batch")),
                1,
                (PaddedShape((("S", high),)),),
                (StrategyRun(name, len(traced.units)),),
                Prices((("1", 1.0),)),
                Prices((("1", 1.0),)),
            )
        )
    names = mesh.axis_names
    groups = (*((name,) for name in names), *((names,) if len(names) > 1 else ()))
    cluster = table.activations.pricer.cluster
    return Plan(
        model=traced.fingerprint,
        training=training,
        mesh=mesh,
        groups=groups,
        stages=(Stage(0, len(traced.units)),),
        parameters=table.choices(),
        strategies=tuple(strategies),
        buckets=tuple(buckets),
        step_s=1.0,
        bound_s=1.0,
        gap=0.0,
        status=Status.FEASIBLE,
        menu=Menu.EXECUTABLE,
        menu_strategies=2,
        covers="nothing: a benchmark",
        baselines=(),
        free_switching_price=1.0,
        priced_for=PricedFor(cluster, *("0" * 64,) * 3, 1, 10**12),
        long_documents=LongDocuments.ERROR,
    )


def run(
    hardware_path: Path, software_path: Path, output: Path, lengths: Sequence[int], rounds: int,
    schemes: Sequence[str], sharing: int | None,
) -> None:  # fmt: skip
    """Measure all points on this rank; the first writes them. Where there are no profiles the
    machine is measured first, and its profiles are written too."""
    torch.set_num_threads(1)
    device, training = torch.device("cpu"), TrainingSpec()
    with connected(device) as communicator:
        cluster = cluster_of_ranks(communicator, device, hardware_path.stem)
        if sharing is not None:
            cluster = replace(cluster, ranks_per_device=sharing)
        if rounds and not hardware_path.exists():
            made = measure(
                communicator, hardware_path.stem, software_path.stem, cluster=cluster,
                shows=communicator.rank == 0,
            )  # fmt: skip
            hardware, software, pace_s = made
            if communicator.rank == 0:
                hardware_path.write_text(hardware_toml(hardware), "utf-8")
                software_path.write_text(software_toml(software), "utf-8")
        else:
            hardware, software = load_hardware(hardware_path), load_software(software_path)
            pace_s = 0.0
        session = Session(communicator, device)
        traced = trace_language_model(load_model(MODEL), compute_dtype="float32", longest=LONGEST)
        model = load_model(MODEL, weights="random", seed=0)
        pricer = Pricer(cluster, hardware, software, training)
        kinds = []
        for mesh in menu.meshes(cluster):
            if menu.model_size(mesh) != cluster.world_size:
                continue
            programs = MeshPrograms.of(traced, mesh, training)
            activations = ActivationTable(programs, pricer, training)
            for implementation in menu.implementations(mesh):
                for name in schemes:
                    scheme = next(one for one in SCHEMES if one.name == name)
                    table = SchemeTable(activations, scheme, (implementation,), 0)
                    plan = by_hand(traced, mesh, implementation, table, training)
                    program = Program.from_plan(model, plan, traced, communicator)
                    degree = plan.buckets[0].batch_degree
                    optimizer = torch.optim.AdamW(program.parameters())
                    kinds.append(Kind(implementation, table, program, degree, optimizer))
        shared = session.largest(shared_by_others(sharing=cluster.ranks_per_device))
        points = [
            point
            for length in lengths
            for point in measured(
                session, kinds, length, rounds, FAST if shared > SHARED else 0.5, pace_s
            )
        ]
        shared = max(shared, session.largest(shared_by_others(sharing=cluster.ranks_per_device)))
        if communicator.rank == 0:
            text = json.dumps(
                {
                    "shared": shared,
                    "world": cluster.world_size,
                    "points": list(map(asdict, points)),
                }
            )
            output.write_text(text)


def measured(
    session: Session,
    kinds: Sequence[Kind],
    length: int,
    rounds: int,
    quantile: float,
    pace_s: float,
) -> list[Point]:
    """Slots of one length of all kinds, in turns, and the end of a step after each. `pace_s` is
    what the yardstick took while the machine was profiled; 0 where that is not known."""
    cases = [(kind, bucket) for kind in kinds for bucket in (0, 1)]
    times: list[list[float]] = [[] for _ in cases]
    paces: list[list[float]] = [[] for _ in cases]
    ends: list[list[float]] = [[] for _ in cases]
    memory: list[tuple[int, int]] = []
    for turn in range(rounds + 2 if rounds else 1):
        for index, (kind, bucket) in enumerate(cases):
            ids = torch.randint(0, 256, (1, length))
            batch = {"input_ids": ids, "labels": ids}
            if turn == 0:
                memory.append((1, 1) if rounds else slot_memory(kind, bucket, batch))
            yard_s = session.largest(session.yardstick.take())
            end_s = timed(session, kind.program.prepare)
            slot_s = timed(session, partial(kind.program.run_slot, bucket, batch))
            end_s += timed(session, partial(finish, kind))
            if turn > 1:
                paces[index].append(yard_s / pace_s if pace_s else 1.0)
                times[index].append(slot_s)
                ends[index].append(end_s)
    points = []
    for (kind, bucket), seconds, pace, after, (live, vm) in zip(
        cases, times, paces, ends, memory, strict=True
    ):
        again = (Recompute.NONE, Recompute.LAYER)[bucket]
        option = Option(kind.implementation, again, 1, kind.degree)
        figure = Figure.of(seconds or [1.0], quantile)
        messages_s, end_s = messages(kind, option, length)
        points.append(
            Point(
                implementation=kind.implementation,
                scheme=kind.table.scheme.name,
                recompute=str(again),
                length=length,
                documents=kind.degree,
                compute_s=kind.table.price(option, length).time_s - messages_s,
                messages_s=messages_s,
                pace=median(pace or [1.0]),
                measured_s=figure.seconds,
                spread=figure.spread,
                end_compute_s=kind.table.fixed_s - end_s,
                end_messages_s=end_s,
                measured_end_s=Figure.of(after or [1.0], quantile).seconds,
                predicted_live=kind.table.slot_bytes(option, length),
                measured_live=int(session.largest(live)),
                measured_vm=int(session.largest(vm)),
            )
        )
    return points


def messages(kind: Kind, option: Option, length: int) -> tuple[float, float]:
    """Predicted seconds of the messages of a slot, and of those of the end of a step."""
    activations = kind.table.activations
    programs, pricer = activations.programs, activations.pricer
    traffic = kind.table.traffics[option.implementation]
    sizes = {"B": option.documents_per_slot, "S": length}
    again = option.recompute is Recompute.LAYER
    slot_s = sum(
        count
        * pricer.messages_s(
            traffic.unit(
                traffic.program.units[index], sizes, recompute=again and programs.is_layer(index)
            ),
            traffic,
        )
        for index, count in programs.groups[option.implementation]
    )
    ends = (traffic.step_copies(), traffic.step_end())
    return slot_s, sum(pricer.messages_s(one, traffic) for one in ends)


def timed(session: Session, run: Callable[[], object]) -> float:
    """Seconds of the slowest rank, all of which begin together."""
    session.communicator.barrier(session.everyone)
    started = time.perf_counter()
    run()
    return session.largest(time.perf_counter() - started)


def finish(kind: Kind) -> None:
    """The end of a step."""
    kind.program.finish_step()
    kind.optimizer.step()
    kind.program.refresh()
    kind.optimizer.zero_grad()


def slot_memory(kind: Kind, bucket: int, batch: dict[str, torch.Tensor]) -> tuple[int, int]:
    """(live bytes, VmHWM) that a slot adds, its batch included; its accumulators exist already.

    Live bytes are the least of a few slots: the backend's threads may hold a tensor a little longer
    than the program does.
    """
    kind.program.run_slot(bucket, batch)
    peaks = []
    for _ in range(3):
        with Live() as live:
            kind.program.run_slot(bucket, {name: x.clone() for name, x in batch.items()})
        peaks.append(live.peak)
    meter = PeakMeter(torch.device("cpu"))
    meter.start()
    kind.program.run_slot(bucket, batch)
    kind.program.discard_gradients()
    return min(peaks), (meter.peak_bytes() or 0) - (meter.base or 0)
