"""Published runs of the zero-bubble paper, each beside its simulation (benchmarks.zero_bubble)."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shardwise.ir.schedule import ScheduleKind, actions
from shardwise.ir.schedule_action import ActionKind
from shardwise.ir.schedule_zero_bubble import Costs
from shardwise.planner.published_row import VOCABULARY as VOCABULARY
from shardwise.solvers.event_simulator import Transfers, simulate
from shardwise.solvers.timeline import Timeline, memory

KINDS: Final = {
    "1F1B": ScheduleKind.ONE_F_ONE_B,
    "1F1B-I": ScheduleKind.INTERLEAVED,
    "ZB-1p": ScheduleKind.ZB_H1,
    "ZB-2p": ScheduleKind.ZB_H2,
}
STATE_BYTES: Final = 18
"""Per weight: 2 weight, 4 gradient, 12 of Adam in mixed precision (assumption)."""


@dataclass(frozen=True)
class Setting:
    """A row of the stage times, in seconds, with the model's sizes."""

    model: str
    devices: int
    micro_batches: int
    micro_batch: int
    length: int
    hidden: int
    layers: int
    heads: int
    forward_s: float
    backward_s: float
    weight_s: float
    transfer_s: float

    @property
    def work_s(self) -> float:
        """What a device computes for one micro-batch."""
        return self.forward_s + self.backward_s + self.weight_s

    @property
    def layer_bytes(self) -> float:
        """Activations of a layer and micro-batch (paper's table 1, attention not fused)."""
        sbh = self.length * self.micro_batch * self.hidden
        return sbh * (34 + 5 * self.heads * self.length / self.hidden)

    @property
    def weight_share(self) -> float:
        """The part of them that W reads."""
        return 32 / (34 + 5 * self.heads * self.length / self.hidden)


@dataclass(frozen=True)
class Run:
    """One published run beside its simulation."""

    setting: Setting
    schedule: str
    published_s: float
    published_gb: float
    simulated_s: float
    receiver_s: float
    """With messages that hold their receiver."""
    activation_gb: float
    total_gb: float

    @property
    def ratio(self) -> float:
        """Simulated over published time."""
        return self.simulated_s / self.published_s

    def idle(self, seconds: float) -> float:
        """The part of a step's seconds in which a device does not compute F, B or W."""
        return 1 - self.setting.micro_batches * self.setting.work_s / seconds


def read(folder: Path) -> list[Run]:
    """All runs, setting by setting."""
    with (folder / "zero-bubble-a100.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found: list[Run] = []
    with (folder / "zero-bubble-stage-times.csv").open(newline="") as file:
        for times in csv.DictReader(file):
            mine = [
                row
                for row in rows
                if row["model"] == times["model"] and row["grad_accum"] == times["microbatches"]
            ]
            setting = _setting(times, int(mine[0]["heads"]))
            by_schedule = {row["schedule"]: row for row in mine}
            found += [_run(setting, name, by_schedule[name]) for name in KINDS]
    return found


def _setting(row: dict[str, str], heads: int) -> Setting:
    names = ("t_forward_ms", "t_backward_input_ms", "t_weight_grad_ms", "t_comm_ms")
    sizes = ("pp", "microbatches", "micro_batch", "seq_len", "hidden", "layers")
    return Setting(
        row["model"],
        *(int(row[name]) for name in sizes),
        heads,
        *(float(row[name]) / 1e3 for name in names),
    )


def _run(setting: Setting, name: str, row: dict[str, str]) -> Run:
    kind, chunks = KINDS[name], int(row["virtual_stages"])
    split = kind.splits_backward
    weight_s = setting.weight_s if split else 0.0
    costs = Costs.equal(
        setting.forward_s / chunks,
        (setting.work_s - setting.forward_s - weight_s) / chunks,
        weight_s / chunks,
        setting.transfer_s,
        weight_share=setting.weight_share,
    )
    orders = actions(
        kind,
        devices=setting.devices,
        micro_batches=setting.micro_batches,
        chunks_per_device=chunks,
        costs=costs,
    )
    timelines = [
        simulate(orders, costs.duration_s, costs.transfer_s, transfers=way)
        for way in (Transfers.OVERLAPPED, Transfers.RECEIVER)
    ]
    overlapped_s, receiver_s = (one.period_s if split else one.makespan_s for one in timelines)
    timeline = timelines[0]
    activation_gb, total_gb = _memory(setting, timeline, chunks)
    return Run(
        setting,
        name,
        float(row["iter_time_s"]),
        float(row["peak_mem_gb"]),
        overlapped_s,
        receiver_s,
        activation_gb,
        total_gb,
    )


def _memory(setting: Setting, timeline: Timeline, chunks: int) -> tuple[float, float]:
    """(activations, all) in GB of the device that holds most; the layers as the rows say."""
    parts = setting.devices * chunks
    ends = (0, parts - 1)
    layers = [(setting.layers + 2) // parts - (chunk in ends) for chunk in range(parts)]
    embedding = VOCABULARY * setting.hidden
    fixed = [0.0] * setting.devices
    for chunk, count in enumerate(layers):
        weights = 12 * setting.hidden**2 * count + embedding * (chunk in ends)
        fixed[chunk % setting.devices] += STATE_BYTES * weights
    logits = 4 * VOCABULARY * setting.length * setting.micro_batch

    def saved(chunk: int, _: int) -> float:
        return layers[chunk] * setting.layer_bytes + logits * (chunk == parts - 1)

    def kept(chunk: int, _: int) -> float:
        return layers[chunk] * setting.layer_bytes * setting.weight_share

    def transient(kind: ActionKind, chunk: int, _: int) -> float:
        return logits * (chunk == parts - 1 and kind is ActionKind.B)

    walked = memory(timeline, saved, kept, transient)
    whole = memory(timeline, saved, kept, transient, fixed)
    return max(peak.bytes for peak in walked) / 1e9, max(peak.bytes for peak in whole) / 1e9
