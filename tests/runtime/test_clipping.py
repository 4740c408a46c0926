"""`program.clip_grad_norm_` against torch's own on whole gradients, in float64."""

import math

import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from shardwise.ir.layout import Layout
from shardwise.ir.training import TrainingSpec
from shardwise.runtime.program import Program
from shardwise.runtime.thread_communicator import run_ranks
from tests.support import fault_model
from tests.support.tiny_decoder import plan_of

WIDE = TrainingSpec("sgd", "float64", "float64", "float64", "float64")
WHOLE = Layout(())


@pytest.fixture(scope="module")
def model():
    return fault_model.build(layers=1).double()


@pytest.fixture(scope="module")
def traced(model):
    return fault_model.traced(model, "float64")


def gradients(traced, scale):
    """A seeded gradient for every parameter of the graph, whose global norm is `scale`; for nan,
    one element is nan."""
    generator = torch.Generator().manual_seed(0)
    found = {
        parameter.name: torch.randn(
            [int(n) for n in parameter.spec.shape], generator=generator, dtype=torch.float64
        )
        for parameter in traced.graph.parameters
    }
    if math.isnan(scale):
        next(iter(found.values())).view(-1)[3] = scale
        return found
    norm = torch.cat([g.flatten() for g in found.values()]).norm()
    return {name: g * (scale / norm) for name, g in found.items()}


def by_torch(wanted, max_norm):
    """(norm, clipped gradients) of the one process."""
    parameters = {name: torch.nn.Parameter(torch.zeros_like(g)) for name, g in wanted.items()}
    for name, parameter in parameters.items():
        parameter.grad = wanted[name].clone()
    norm = float(clip_grad_norm_(parameters.values(), max_norm))
    return norm, {name: p.grad for name, p in parameters.items()}


@pytest.mark.parametrize(("mesh", "scheme"), [("x0=2@l data=2@l", "ZeRO-3"), ("data=2@l", "DDP")])
@pytest.mark.parametrize(
    ("scale", "max_norm"),
    [
        (7.0, 1.0),  # clipped
        (0.5, 1.0),  # not
        (1.0, 1.0 + 5e-7),  # within the epsilon of the norm: scaled a little
        (1.0, 1.0 + 2e-6),
        (1e-6, 1e-6),  # the epsilon halves it
        (float("nan"), 1.0),
    ],
)
def test_norm_and_gradients_are_those_of_torch(model, traced, mesh, scheme, scale, max_norm):
    plan = plan_of(mesh, scheme, found=traced, training=WIDE)
    wanted = gradients(traced, scale)

    def run(communicator):
        program = Program.from_plan(model, plan, traced, communicator)
        states = program.store.states
        for name, master in program.named_parameters():
            layout, shape = states[name].rest.master, tuple(wanted[name].shape)
            master.grad = program.router.run(wanted[name], WHOLE, layout, shape).clone()
        norm = program.clip_grad_norm_(max_norm)
        found = {
            name: program.router.run(
                master.grad, states[name].rest.master, WHOLE, states[name].rest.shape
            ).clone()
            for name, master in program.named_parameters()
        }
        return norm, found

    norm, clipped = by_torch(wanted, max_norm)
    for found_norm, found in run_ranks(plan.mesh.world_size, run, timeout_s=60):
        assert found_norm == pytest.approx(norm, rel=1e-14, nan_ok=True)
        for name, gradient in clipped.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-14, atol=0, equal_nan=True)
