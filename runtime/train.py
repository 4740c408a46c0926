"""The training loop of one rank; `shardwise.runtime.launch` makes the trainer and its files."""

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TextIO

import numpy as np
import torch

from shardwise.ir.errors import MismatchError
from shardwise.ir.plan import Plan
from shardwise.runtime.communicator import Communicator
from shardwise.runtime.corpus import Corpus
from shardwise.runtime.data import (
    Indices,
    Sampler,
    StepData,
    held_out,
    micro_batch,
    step_data,
)
from shardwise.runtime.job import Job
from shardwise.runtime.memory import PeakMeter
from shardwise.runtime.program import Program, SlotResult
from shardwise.runtime.switches import rehearse, total_bytes
from shardwise.solvers.batcher import Slot, bucket_shapes

Say = Callable[[str], None]


@dataclass
class Totals:
    """What the closing summary reports, of the steps that this process has run."""

    steps: int = 0
    documents: int = 0
    dropped: int = 0
    """Documents that the plan's policy for long ones left out."""
    tokens: int = 0
    slots: Counter[str] = field(default_factory=Counter)
    switches: int = 0
    """Neighbouring slots, over the whole run, under different strategies."""
    switch_bytes: int = 0
    """Bytes of this rank's collectives, minus those of the same slots if none were switched."""
    step_s: list[float] = field(default_factory=list)
    slots_s: list[float] = field(default_factory=list)
    predicted_slots_s: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    evaluations: list[tuple[int, float]] = field(default_factory=list)
    """(step, loss of the documents held out)."""


class Trainer:
    """One rank's training state: program, optimizer, sampler, and the number of steps done.

    Making one is a collective of all ranks: every kind of slot is rehearsed.
    """

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
        self.meter = PeakMeter(self.device)
        output = job.output
        self.held_out = held_out(corpus, output.eval_documents if output.eval_every else 0)
        self._lengths = corpus.lengths()
        self.sampler = Sampler(
            self._lengths[: len(self._lengths) - len(self.held_out)],
            tokens_per_step=job.tokens_per_step,
            seed=job.data.seed,
        )
        self.optimizer = make_optimizer(job, program)
        self.step = 0
        self.totals = Totals()
        self._last_strategy: tuple[str, ...] | None = None
        self._inputs = tuple(item.name for item in program.executor.graph.inputs)
        shapes = bucket_shapes(plan)
        self._reference = rehearse(program, communicator, shapes, self._run_dummy)

    def run(self, metrics: TextIO | None, save: Callable[["Trainer"], None] | None) -> Totals:
        """Train to the job's last step; `metrics` gets one JSON line a step (rank 0)."""
        output, steps = self.job.output, self.job.steps
        while self.step < steps:
            record = self.one_step()
            if output.eval_every and (self.step % output.eval_every == 0 or self.step == steps):
                record |= self.evaluate()
            if metrics is not None:
                metrics.write(json.dumps(record) + "\n")
                metrics.flush()
            if self.step % self.job.log_every == 0 or self.step == steps:
                self.say(progress(record, steps))
            last = self.step == steps
            if save is not None and (
                last or (output.save_every and self.step % output.save_every == 0)
            ):
                save(self)
        return self.totals

    def one_step(self) -> dict[str, Any]:
        """One optimizer step; the record of it for metrics and progress."""
        started = time.perf_counter()
        documents = self.sampler.batch(self.step)
        data = step_data(self.corpus, self.plan, documents)
        self._agree(data)
        rate = self.job.schedule.rate(self.step, self.job.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss_sum = 0.0
        self.meter.start()
        with self.communicator.recording() as log:
            self.program.prepare()
            slots_started = time.perf_counter()
            for slot in data.slots:
                loss_sum += self.program.run_slot(slot.bucket, self._batch(data, slot)).loss_sum
                self._count(slot)
            slots_s = time.perf_counter() - slots_started
            weight = self.program.finish_step()
            moved = total_bytes(log)
        clip = self.job.training.clip_norm
        norm = self.program.clip_grad_norm_(clip) if clip is not None else None
        self.optimizer.step()
        self.program.refresh()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        loss = loss_sum / weight
        tokens = int(self._lengths[data.documents].sum())
        step_s = time.perf_counter() - started
        predicted = sum(self.predicted_s(slot) for slot in data.slots)
        totals = self.totals
        totals.steps += 1
        totals.documents += len(data.documents)
        totals.dropped += data.dropped
        totals.tokens += tokens
        totals.switch_bytes += moved - self._reference.step_bytes(data.slots)
        totals.step_s.append(step_s)
        totals.slots_s.append(slots_s)
        totals.predicted_slots_s.append(predicted)
        totals.losses.append(loss)
        return {
            "step": self.step,
            "loss": loss,
            "learning_rate": rate,
            "grad_norm": norm,
            "documents": len(data.documents),
            "tokens": tokens,
            "targets": weight,
            "tokens_per_s": tokens / step_s,
            "step_s": step_s,
            "slots_s": slots_s,
            "predicted_slots_s": predicted,
            "collective_bytes_per_rank": moved,
            "peak_bytes_per_rank": self.meter.peak_bytes(),
            "slots": dict(Counter(map(self.slot_name, data.slots))),
        }

    def evaluate(self) -> dict[str, Any]:
        """The mean loss of the documents held out, as masters are now; a collective."""
        data = step_data(self.corpus, self.plan, self.held_out)
        results = [
            self.program.evaluate(slot.bucket, self._batch(data, slot)) for slot in data.slots
        ]
        self.program.refresh()  # so that the next step moves what every step does
        weight = sum(result.weight for result in results)
        loss = sum(result.loss_sum for result in results) / max(1.0, weight)
        self.totals.evaluations.append((self.step, loss))
        return {"eval_loss": loss, "eval_targets": weight}

    def strategies(self, bucket: int) -> tuple[str, ...]:
        """Ids of the strategies of all units under a bucket."""
        return self.plan.unit_strategies(self.plan.buckets[bucket])

    def slot_name(self, slot: Slot) -> str:
        """`ulysses@8192`: the first unit's strategy and the padded length."""
        return f"{self.strategies(slot.bucket)[0]}@{slot.length}"

    def predicted_s(self, slot: Slot) -> float:
        """Seconds that the plan states for a slot."""
        bucket = self.plan.buckets[slot.bucket]
        dim = bucket.bucket.ranges[0].dim
        return bucket.time.padded(bucket.documents_per_slot, {dim: slot.length})

    def _count(self, slot: Slot) -> None:
        strategy = self.strategies(slot.bucket)
        if self._last_strategy is not None and strategy != self._last_strategy:
            self.totals.switches += 1
        self._last_strategy = strategy
        self.totals.slots[self.slot_name(slot)] += 1

    def _batch(self, data: StepData, slot: Slot) -> Any:
        return micro_batch(
            self.corpus,
            data,
            slot,
            seats=self.plan.buckets[slot.bucket].seats,
            replica=self.plan.replica(slot.bucket, self.communicator.rank),
            names=self._inputs,
            device=self.device,
        )

    def _run_dummy(self, bucket: int, length: int) -> SlotResult:
        empty: Indices = np.zeros(0, dtype=np.int64)
        slot = Slot(bucket, length, ((),) * self.plan.buckets[bucket].batch_degree)
        return self.program.run_slot(bucket, self._batch(StepData(empty, (), 0), slot))

    def _agree(self, data: StepData) -> None:
        """All ranks have the same slots, or every rank raises before anything is run."""
        mine = torch.tensor([data.digest()], dtype=torch.int64, device=self.device)
        everyone = tuple(range(self.communicator.world_size))
        digests = self.communicator.all_gather(mine, everyone).flatten().tolist()
        most = Counter(digests).most_common(1)[0][0]
        others = [str(rank) for rank, digest in enumerate(digests) if digest != most]
        if others:
            raise MismatchError(
                f"step {self.step + 1}: rank {', '.join(others)} of {len(digests)} has other slots "
                "than the rest; run all ranks with the same job, plan and corpus"
            )


def make_optimizer(job: Job, program: Program) -> torch.optim.Optimizer:
    """The job's optimizer over the masters that train."""
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


def progress(record: dict[str, Any], steps: int) -> str:
    """One line of a step; the ratio is of its slots, predicted to measured seconds."""
    slots = " ".join(f"{count}x{name}" for name, count in record["slots"].items())
    held_out = f"  held out {record['eval_loss']:.4f}" if "eval_loss" in record else ""
    return (
        f"step {record['step']}/{steps}  loss {record['loss']:.4f}{held_out}  "
        f"{record['tokens_per_s']:.0f} tokens/s  {record['step_s']:.2f} s "
        f"(slots predicted/measured {record['predicted_slots_s'] / record['slots_s']:.2f})  {slots}"
    )
