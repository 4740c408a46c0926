"""The whole path in Python: a plan, its file, and a training loop of your own around it.

    python examples/train_by_hand.py plan out/plan.json
    torchrun --nproc-per-node 2 examples/train_by_hand.py train out/plan.json --steps 3

Your model, your data, your optimizer, your schedule. A plan of one rank runs without torchrun.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from shardwise import Lengths, Plan, Program, TrainingSpec, plan
from shardwise.ir.trace_models import load_model
from shardwise.solvers.batcher import Slot, batch_slots, bucket_shapes

INPUTS = {"input_ids": ("B", "S"), "labels": ("B", "S")}
TOKENS_PER_STEP, LONGEST = 16384, 4096


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Plan, or train; returns the loss of each step, the same on every rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("plan", "train"))
    parser.add_argument("plan", type=Path, help="plan file: written, or read")
    parser.add_argument("--model", default="hf:configs/models/tiny-llama.json")
    parser.add_argument("--cluster", default="configs/clusters/local-2.toml")
    parser.add_argument("--steps", default=3, type=int)
    options = parser.parse_args(arguments)
    if options.command == "plan":
        make_plan(options.model, options.cluster, options.plan)
        return []
    return train(options.model, Plan.load(options.plan), options.steps)


def make_plan(model: str, cluster: str, path: Path) -> None:
    """Search, print the answer and write it. No weights are made."""
    documents = [len(one) for step in range(16) for one in global_batch(step)]
    made = plan(
        load_model(model, weights="none"),  # any torch module; weights do not matter
        INPUTS,
        cluster=cluster,
        lengths=Lengths.from_samples(documents, source="counting"),
        tokens_per_step=TOKENS_PER_STEP,
        training=TrainingSpec(clip_norm=1.0),
    )
    made.save(path)
    print(made.explain())


def train(model: str, plan: Plan, steps: int) -> list[float]:
    """A training loop under the plan; every rank runs this."""
    module = load_model(model, weights="random", seed=0)
    program = Program.from_plan(module, plan, inputs=INPUTS)
    optimizer = torch.optim.AdamW(program.parameters(), lr=1e-3)
    losses = []
    for step in range(steps):
        documents = global_batch(step, plan.priced_for.tokens_per_step, _longest(plan))
        slots = batch_slots([len(each) for each in documents], bucket_shapes(plan))
        loss_sum = 0.0
        for slot in slots:  # every rank runs the same slots, each its own rows of them
            batch = my_rows(documents, slot, plan, program.rank)
            loss_sum += program.run_slot(slot.bucket, batch).loss_sum
        weight = program.finish_step()  # leaves the gradient of the mean loss on masters
        program.clip_grad_norm_(1.0)
        optimizer.step()
        program.refresh()  # compute copies are gathered again from the new masters
        optimizer.zero_grad()
        losses.append(loss_sum / weight)
        if program.rank == 0:
            print(f"step {step + 1}: loss {losses[-1]:.4f}, {len(slots)} slots")
    return losses


def _longest(plan: Plan) -> int:
    """No document of the loop is longer than the plan's buckets."""
    return min(LONGEST, plan.buckets[-1].bucket.ranges[0].high)


def global_batch(
    step: int, tokens: int = TOKENS_PER_STEP, longest: int = LONGEST
) -> list[np.ndarray]:
    """Documents of a step, the same on every rank: here counting, from random numbers on."""
    rng = np.random.default_rng([7, step])
    documents: list[np.ndarray] = []
    while sum(map(len, documents)) < tokens:
        length = int(2 ** rng.uniform(1, np.log2(longest)))
        documents.append((np.arange(length) + rng.integers(64)) % 64)
    return documents


def my_rows(
    documents: Sequence[np.ndarray], slot: Slot, plan: Plan, rank: int
) -> dict[str, torch.Tensor]:
    """This rank's documents of a slot, padded; -100 is a target that does not count."""
    bucket = plan.buckets[slot.bucket]
    ids = torch.zeros(bucket.seats, slot.length, dtype=torch.int64)
    labels = torch.full_like(ids, -100)
    for row, index in enumerate(slot.documents[plan.replica(slot.bucket, rank)]):
        tokens = torch.from_numpy(documents[index])
        ids[row, : len(tokens)] = labels[row, : len(tokens)] = tokens
    return {"input_ids": ids, "labels": labels}


if __name__ == "__main__":
    main()
