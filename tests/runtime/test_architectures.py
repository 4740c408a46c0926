"""Whole models that are no plain decoder, under two strategies of two axes, against one process.

Convolutions with batch and group statistics, experts that are looked up, and scans over chunks:
the rules of `rules_images` and `rules_index` together, where one operator feeds the next.
"""

import functools
from dataclasses import replace

import pytest
import torch

from benchmarks.trace_cases import CASES
from benchmarks.trace_models import batch, build
from shardwise.ir.expression import evaluate
from shardwise.ir.lift import lifted
from shardwise.ir.localise import localise
from shardwise.ir.mesh import Mesh
from shardwise.ir.program import Call
from shardwise.ir.trace import trace
from shardwise.runtime.executor import Executor
from shardwise.runtime.interpreter import interpret, module_values
from shardwise.runtime.thread_communicator import run_ranks
from tests.support.rig import Rig, strategy

MESH = Mesh.parse("x0=2@l data=2@l")
STRATEGIES = ("data", "tensor_sequence")
ROWS, LENGTH, TOLERANCE = 4, 16, 1e-10
NAMES = ("ResNet block (by hand)", "U-Net (by hand)", "Mixtral", "Mamba-2 (S = 16)")


@functools.cache
def made(name):
    """The case, its model in float64 and its trace, in float64 throughout."""
    torch.set_num_threads(1)
    case = next(one for one in CASES if one.name == name)
    model = build(case, torch.float64)
    traced = trace(model, case.inputs, dims=case.dims, name=name)
    return case, model, replace(traced, graph=lifted(traced.graph))


@pytest.mark.parametrize("name", NAMES)
def test_loss_and_gradients_are_those_of_one_process(name):
    case, model, traced = made(name)
    given = batch(case, ROWS, LENGTH, torch.float64)
    held = module_values(model, traced.graph, traced.constants)
    values = {key: value.detach().clone() for key, value in held.items()}
    total, weight = interpret(traced.graph, {**held, **given})
    wanted = total / weight
    names = [one.name for one in traced.graph.parameters]
    found = torch.autograd.grad(wanted, [held[one] for one in names])
    gradients = dict(zip(names, found, strict=True))

    def rank(communicator):
        rig = Rig(
            communicator, traced.graph, traced.units, MESH,
            [strategy(one, MESH) for one in STRATEGIES], "ddp", values, {},
        )  # fmt: skip
        constants = {one.name: values[one.name].clone() for one in traced.graph.constants}
        rig.executor = Executor(traced.graph, rig.executor.buckets, rig.store, constants)
        losses = [rig.slot(bucket, **given) for bucket in range(len(STRATEGIES))]
        return losses, rig.whole_gradients(1.0 / sum(weight for _, weight in losses))

    for losses, found in run_ranks(MESH.world_size, rank, timeout_s=120):
        for total, weight in losses:
            assert total / weight == pytest.approx(wanted.item(), rel=TOLERANCE)
        norm = float(torch.stack([g.norm() for g in gradients.values()]).norm())
        for key, gradient in gradients.items():
            scale = max(float(gradient.abs().max()), 1e-5 * norm)
            error = float((found[key] - gradient).abs().max()) / scale
            assert error <= TOLERANCE, f"{key}: {error:.1e}"


@pytest.mark.parametrize("name", NAMES)
def test_the_batch_splits_all_work_that_counts(name):
    """Under `data` on all four ranks, nearly all FLOPs are done by one of them each."""
    _, _, traced = made(name)
    local = localise(traced.graph, traced.units, MESH, [strategy("data", MESH)] * len(traced.units))
    sizes = {"B": 8, "S": LENGTH}
    calls = [step for step in local.steps() if isinstance(step, Call)]
    flops = [evaluate(traced.graph.operator(c.operator.name).flops, sizes) for c in calls]
    alone = sum(work for call, work in zip(calls, flops, strict=True) if call.parts < 4)
    assert alone <= 0.005 * sum(flops)
