"""The training loop: `torchrun ... -m shardwise train JOB.toml --plan PLAN.json`."""

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch

from shardwise.ir.errors import MismatchError
from shardwise.ir.plan import Plan
from shardwise.ir.strategy import Role
from shardwise.runtime.communicator import Communicator
from shardwise.runtime.corpus import Corpus
from shardwise.runtime.data import Sampler, StepData, bucket_shapes, micro_batch, step_data
from shardwise.runtime.job import Job
from shardwise.runtime.memory import PeakMeter
from shardwise.runtime.program import Program
from shardwise.solvers.batcher import Slot

Say = Callable[[str], None]


@dataclass
class Totals:
    """What the closing summary reports."""

    steps: int = 0
    documents: int = 0
    tokens: int = 0
    slots: Counter[str] = field(default_factory=Counter)
    switches: int = 0
    step_s: list[float] = field(default_factory=list)
    predicted_s: list[float] = field(default_factory=list)
    switch_bytes: int = 0
    """Bytes of collectives of all steps, minus those of the same slots grouped by bucket."""
    losses: list[float] = field(default_factory=list)


class Trainer:
    """One rank's training state: program, optimizer, sampler."""

    def __init__(
        self,
        job: Job,
        plan: Plan,
        program: Program,
        corpus: Corpus,
        communicator: Communicator,
        *,
        say: Say,
    ) -> None:
        self.job, self.plan, self.program, self.corpus = job, plan, program, corpus
        self.communicator, self.say = communicator, say
        self.device = torch.device(job.device)
        self.sampler = Sampler(corpus.lengths(), job.tokens_per_step, job.data.seed)
        self.optimizer = _optimizer(job, program)
        self.step = 0
        self.totals = Totals()
        self.meter = PeakMeter(self.device)
        self._reference = rehearse(self)

    def run(self, metrics: TextIO | None, save: Callable[["Trainer"], None] | None) -> Totals:
        """Train to the job's last step; `metrics` gets one JSON line a step (rank 0)."""
        while self.step < self.job.steps:
            record = self.one_step()
            if metrics is not None:
                metrics.write(json.dumps(record) + "\n")
                metrics.flush()
            if self.step % self.job.log_every == 0 or self.step == self.job.steps:
                self.say(_progress(record, self.job.steps))
            every = self.job.output.save_every
            if save is not None and every and self.step % every == 0 and self.step < self.job.steps:
                save(self)
        if save is not None:
            save(self)
        return self.totals

    def one_step(self) -> dict[str, Any]:
        """One optimizer step; the record of it for metrics and progress."""
        started = time.perf_counter()
        data = step_data(self.corpus, self.plan, self.sampler.next_batch())
        self._agree(data)
        rate = self.job.schedule.rate(self.step, self.job.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss_sum = 0.0
        self.meter.start()
        with self.communicator.recording() as log:
            self.program.prepare()
            for slot in data.slots:
                bucket = self.plan.buckets[slot.bucket]
                batch = micro_batch(
                    self.corpus, data, slot, bucket.seats, self._replica(slot.bucket),
                    names=[item.name for item in self.program.executor.graph.inputs],
                    device=self.device,
                )  # fmt: skip
                loss_sum += self.program.run_slot(slot.bucket, batch).loss_sum
            weight = self.program.finish_step()
            moved = sum(record.message_bytes for record in log)
        self.totals.switch_bytes += moved - self._reference.step_bytes(data.slots)
        clip = self.job.training.clip_norm
        norm = self.program.clip_grad_norm_(clip) if clip is not None else None
        self.optimizer.step()
        self.program.refresh()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        elapsed = time.perf_counter() - started
        return self._record(data, loss_sum / weight, norm, rate, elapsed, moved, weight)

    def _record(
        self,
        data: StepData,
        loss: float,
        norm: float | None,
        rate: float,
        elapsed: float,
        total_bytes: int,
        weight: float,
    ) -> dict[str, Any]:
        tokens = int(sum(len(self.corpus.documents[int(i)]) for i in data.documents))
        names = [self._slot_name(slot.bucket, slot.length) for slot in data.slots]
        predicted = self._predicted_s(data)
        order = [slot.bucket for slot in data.slots]
        totals = self.totals
        totals.steps += 1
        totals.documents += len(data.documents)
        totals.tokens += tokens
        totals.slots.update(names)
        totals.switches += sum(self._strategy(a) != self._strategy(b) for a, b in pairwise(order))
        totals.step_s.append(elapsed)
        totals.predicted_s.append(predicted)
        totals.losses.append(loss)
        return {
            "step": self.step,
            "loss": loss,
            "learning_rate": rate,
            "grad_norm": norm,
            "tokens": tokens,
            "targets": weight,
            "tokens_per_s": tokens / elapsed,
            "step_s": elapsed,
            "predicted_s": predicted,
            "collective_bytes_per_rank": total_bytes,
            "peak_bytes": self.meter.peak_bytes(),
            "slots": dict(Counter(names)),
        }

    def _strategy(self, bucket: int) -> tuple[str, ...]:
        return self.plan.unit_strategies(self.plan.buckets[bucket])

    def _slot_name(self, bucket: int, length: int) -> str:
        return f"{self.plan.buckets[bucket].runs[0].strategy}@{length}"

    def _predicted_s(self, data: StepData) -> float:
        buckets = self.plan.buckets
        slots = 0.0
        for slot in data.slots:
            bucket = buckets[slot.bucket]
            band = bucket.bucket.ranges[0]
            slots += bucket.time.padded(bucket.documents_per_slot, {band.dim: slot.length})
        return slots

    def _replica(self, bucket: int) -> int:
        """This rank's place among the replicas of a bucket: its batch axes, the first slowest."""
        strategy = self.plan.strategy(self._strategy(bucket)[0])
        places = self.plan.mesh.coordinates(self.communicator.rank)
        replica = 0
        for axis in self.plan.mesh.axis_names:
            if strategy.role(axis) is Role.BATCH:
                replica = replica * self.plan.mesh.axis(axis).size + places[axis]
        return replica

    def _agree(self, data: StepData) -> None:
        """All ranks have the same slots, or the step stops before anything is run."""
        mine = data.digest()
        both = torch.tensor([mine, -mine], dtype=torch.int64, device=self.device)
        everyone = tuple(range(self.communicator.world_size))
        least = self.communicator.all_reduce(both, everyone, op="min")
        if int(least[0]) != mine or int(least[1]) != -mine:
            raise MismatchError(
                f"step {self.step + 1}: rank {self.communicator.rank} has other slots than "
                "the other ranks; run all ranks with the same job, plan and corpus"
            )


@dataclass(frozen=True)
class Reference:
    """Bytes of collectives per rank of each kind of slot after a slot of its own kind."""

    slots: dict[tuple[int, int], int]
    fixed: int
    """Of a step outside its slots: copies and reductions that wait for its end."""

    def step_bytes(self, slots: Sequence[Slot]) -> int:
        """Of these slots grouped by bucket, and the step around them."""
        return self.fixed + sum(self.slots[slot.bucket, slot.length] for slot in slots)


def rehearse(trainer: "Trainer") -> Reference:
    """Run every kind of slot twice on masked dummies: warms up, and counts what a slot moves when
    nothing is switched. Gradients (all zero) are dropped, masters stay as they are."""
    program, plan = trainer.program, trainer.plan
    counted: dict[tuple[int, int], int] = {}
    names = [item.name for item in program.executor.graph.inputs]
    empty = StepData(np.zeros(0, dtype=np.int64), (), 0)
    with trainer.communicator.recording() as log:
        program.prepare()
        copies = sum(record.message_bytes for record in log)
        for bucket, shape in enumerate(bucket_shapes(plan)):
            for length in shape.padded:
                slot = Slot(bucket, length, ((),) * shape.batch_degree)
                for _ in range(2):
                    start = len(log)
                    batch = micro_batch(
                        trainer.corpus, empty, slot, shape.seats, 0,
                        names=names, device=trainer.device,
                    )  # fmt: skip
                    program.run_slot(bucket, batch)
                    counted[bucket, length] = sum(r.message_bytes for r in log[start:])
        start = len(log)
        program.store.gradients(1.0)
        fixed = copies + sum(record.message_bytes for record in log[start:])
    program.discard_gradients()
    return Reference(counted, fixed)


def _optimizer(job: Job, program: Program) -> torch.optim.Optimizer:
    options = job.optimizer
    rate = job.schedule.peak
    if options.name == "sgd":
        return torch.optim.SGD(program.parameters(), lr=rate, weight_decay=options.weight_decay)
    return torch.optim.AdamW(
        program.parameters(),
        lr=rate,
        betas=options.betas,
        eps=options.epsilon,
        weight_decay=options.weight_decay,
    )


def _progress(record: dict[str, Any], steps: int) -> str:
    slots = " ".join(f"{count}x{name}" for name, count in record["slots"].items())
    ratio = record["predicted_s"] / record["step_s"]
    return (
        f"step {record['step']}/{steps}  loss {record['loss']:.4f}  "
        f"{record['tokens_per_s']:.0f} tokens/s  {record['step_s']:.2f} s "
        f"(predicted/measured {ratio:.2f})  {slots}"
    )


def metrics_path(folder: Path) -> Path:
    """Where the metrics of a run go."""
    return folder / "metrics.jsonl"
