"""A training loop of your own around a plan: your data, your optimizer, your schedule.

    shardwise lengths stdlib -o out/lengths.csv
    shardwise plan hf:configs/models/tiny-llama.json --compute-dtype float32 \\
        --cluster configs/clusters/local-2.toml --lengths out/lengths.csv \\
        --tokens-per-step 16384 -o out/plan.json
    torchrun --nproc-per-node 2 examples/train_by_hand.py \\
        --model hf:configs/models/tiny-llama.json --plan out/plan.json --steps 3

A plan of one rank runs without torchrun.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from shardwise.ir.plan import Plan
from shardwise.ir.strategy import Role
from shardwise.ir.trace_language import trace_language_model
from shardwise.ir.trace_models import load_model
from shardwise.runtime.data import bucket_shapes
from shardwise.runtime.program import Program
from shardwise.runtime.ranks import connected
from shardwise.solvers.batcher import Slot, batch_slots


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train; returns the loss of each step, the same on every rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="hf:config.json or module:function")
    parser.add_argument("--plan", required=True, type=Path)
    parser.add_argument("--steps", default=3, type=int)
    options = parser.parse_args(arguments)
    plan = Plan.load(options.plan)
    with connected(torch.device("cpu")) as communicator:
        model = load_model(options.model, weights="random", seed=0)
        longest = plan.buckets[-1].bucket.ranges[0].high
        traced = trace_language_model(
            model, compute_dtype=plan.training.compute_dtype, longest=longest
        )
        program = Program.from_plan(model, plan, traced, communicator)
        optimizer = torch.optim.AdamW(program.parameters(), lr=1e-3)
        losses = []
        for step in range(options.steps):
            documents = global_batch(step, plan.priced_for.tokens_per_step, longest)
            slots = batch_slots([len(each) for each in documents], bucket_shapes(plan))
            loss_sum = 0.0
            for slot in slots:  # every rank runs the same slots, each its own rows of them
                batch = my_rows(documents, slot, plan, communicator.rank)
                loss_sum += program.run_slot(slot.bucket, batch).loss_sum
            weight = program.finish_step()  # leaves the gradient of the mean loss on masters
            program.clip_grad_norm_(1.0)
            optimizer.step()
            program.refresh()  # compute copies are gathered again from the new masters
            optimizer.zero_grad()
            losses.append(loss_sum / weight)
            if communicator.rank == 0:
                print(f"step {step + 1}: loss {losses[-1]:.4f}, {len(slots)} slots")
    return losses


def global_batch(step: int, tokens: int, longest: int) -> list[np.ndarray]:
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
    strategy, places = plan.strategy(bucket.runs[0].strategy), plan.mesh.coordinates(rank)
    replica = 0
    for axis in plan.mesh.axes:
        if strategy.role(axis.name) is Role.BATCH:
            replica = replica * axis.size + places[axis.name]
    ids = torch.zeros(bucket.seats, slot.length, dtype=torch.int64)
    labels = torch.full_like(ids, -100)
    for row, index in enumerate(slot.documents[replica]):
        tokens = torch.from_numpy(documents[index])
        ids[row, : len(tokens)] = labels[row, : len(tokens)] = tokens
    return {"input_ids": ids, "labels": labels}


if __name__ == "__main__":
    main()
