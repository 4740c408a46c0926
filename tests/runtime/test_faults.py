"""Faults put into every implementation of a redistribution, and into what stands around them.

`verify` has to catch each one: a report that does not pass is what the test wants to see.
"""

from dataclasses import replace

import pytest
import torch

from shardwise.ir.localise import _localised
from shardwise.ir.strategy import Recompute
from shardwise.runtime.verify import Verification
from tests.support.fault_model import LONGEST, build, traced
from tests.support.faults import FAULTS
from tests.support.tiny_decoder import plan_of

BANDS = ((0, 8, "data", 2), (8, 16, "tensor_sequence", 2), (16, LONGEST, "ulysses", 1))
PLANS = {
    "zero3": ("x0=2@l data=2@l", "ZeRO-3", Recompute.NONE),
    "two": ("x0=2@l", "ZeRO-3", Recompute.NONE),
    "again": ("x0=2@l", "ZeRO-3", Recompute.LAYER),
    "zero1": ("x0=2@l data=2@l", "ZeRO-1", Recompute.NONE),
    "ddp": ("x0=2@l", "DDP", Recompute.NONE),
}


@pytest.fixture(scope="module")
def prepared():
    """One process run once for each plan; the replays are the tests'."""
    torch.set_num_threads(1)
    model, made = build(layers=1), {}
    found, wide = traced(model), traced(model.double(), "float64")
    for name, (mesh, scheme, recompute) in PLANS.items():
        plan = plan_of(mesh, scheme, BANDS, found=found)
        strategies = tuple((k, replace(s, recompute=recompute)) for k, s in plan.strategies)
        plan = replace(plan, strategies=strategies, training=replace(plan.training, clip_norm=0.1))
        made[name] = Verification(plan, model, trace=lambda _: wide, steps=2)
    return made


@pytest.mark.parametrize("plan", PLANS)
def test_without_a_fault_it_passes(prepared, plan):
    report = prepared[plan].replay()
    assert report.passed, str(report)


@pytest.mark.parametrize(("plan", "fault"), FAULTS, ids=lambda v: getattr(v, "__name__", v))
def test_it_is_caught(prepared, monkeypatch, plan, fault):
    fault(monkeypatch)
    _localised.cache_clear()
    steps = 2 if any(word in fault.__name__ for word in ("stale", "over_steps")) else 1
    try:
        report = prepared[plan].replay(steps)
    finally:
        _localised.cache_clear()
    assert not report.failure, "the fault stops the program: it says nothing of the comparison"
    assert not report.passed, str(report)
