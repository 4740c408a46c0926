"""The replay in the plan's own dtypes: what passes, and faults that float64 cannot show."""

import math
from dataclasses import replace

import pytest
import torch

from shardwise.runtime import program
from shardwise.runtime.parameters import ParameterStore
from shardwise.runtime.thread_communicator import ThreadCommunicator
from shardwise.runtime.verify import Verification, verify
from shardwise.runtime.verify_precision import _ratio
from shardwise.runtime.verify_report import Precision, StepErrors, VerifyReport
from tests.support import fault_model
from tests.support.tiny_decoder import plan_of

BANDS = ((0, 8, "data", 2), (8, 16, "tensor_sequence", 2), (16, 64, "ulysses", 1))


class Prepared:
    """A plan in a compute dtype, and the one process run once."""

    def __init__(self, dtype, mesh, scheme):
        self.model = fault_model.build(layers=1)
        plan = plan_of(mesh, scheme, BANDS, found=fault_model.traced(self.model, dtype))
        self.plan = replace(plan, training=replace(plan.training, compute_dtype=dtype))
        self.verification = Verification(self.plan, self.model)


@pytest.fixture(scope="module")
def single():
    torch.set_num_threads(1)
    return Prepared("float32", "x0=2@l", "ZeRO-3")


@pytest.fixture(scope="module")
def half():
    torch.set_num_threads(1)
    return Prepared("bfloat16", "x0=2@l", "ZeRO-1")


def narrow_sums(monkeypatch):
    """Sums over ranks in bfloat16 where the payload is float32."""
    for name in ("all_reduce", "reduce_scatter"):
        before = getattr(ThreadCommunicator, name)

        def narrow(self, x, *arguments, before=before, **options):
            if x.dtype == torch.float32:
                return before(self, x.bfloat16(), *arguments, **options).float()
            return before(self, x, *arguments, **options)

        monkeypatch.setattr(ThreadCommunicator, name, narrow)


def narrow_masters(monkeypatch):
    """Masters are kept in the compute dtype, whatever the plan says of them."""
    before = ParameterStore.__init__

    def init(self, rests, uses, *arguments, **options):
        uses = list(uses)
        dtypes = {use.parameter: getattr(torch, use.spec.dtype) for use in uses}
        before(self, rests, uses, *arguments, **options)
        for name, state in self.states.items():
            state.local.copy_(state.local.to(dtypes[name]))

    monkeypatch.setattr(ParameterStore, "__init__", init)


@pytest.mark.parametrize("dtype", ["single", "half"])
def test_without_a_fault_it_passes(request, dtype):
    prepared = request.getfixturevalue(dtype)
    found = prepared.verification.precision(prepared.model)
    assert found.within() and found.dtype == prepared.plan.training.compute_dtype, str(found)
    assert 0.2 < found.gradient < 3 and 0 < found.loss < 3


@pytest.mark.parametrize(
    ("dtype", "fault", "what"),
    [("single", narrow_sums, "gradient"), ("half", narrow_masters, "weight")],
)
def test_faults_that_float64_cannot_show(request, monkeypatch, dtype, fault, what):
    prepared = request.getfixturevalue(dtype)
    fault(monkeypatch)
    assert prepared.verification.replay(1).passed
    found = prepared.verification.precision(prepared.model)
    assert not found.within() and getattr(found, what) > 4, str(found)


def test_the_report_says_so_and_fails_with_it(single, monkeypatch):
    report = verify(single.plan, single.model)
    assert report.passed and "float32: errors over the module's own: loss " in str(report)
    assert str(report).endswith("relative, float64; ratios <= 4)")
    narrow_sums(monkeypatch)
    report = verify(single.plan, single.model)
    assert not report.passed and all(step.within() for step in report.steps)
    assert "NOT PASSED" in str(report)


def test_a_rank_that_fails_in_the_second_run_is_told(single, monkeypatch):
    before = program.Program.run_slot

    def run_slot(self, bucket, batch):
        if self.plan.training.compute_dtype == "float32":
            raise MemoryError("out of memory, said the test")
        return before(self, bucket, batch)

    monkeypatch.setattr(program.Program, "run_slot", run_slot)
    report = verify(single.plan, single.model)
    assert not report.passed and report.failure.startswith("in float32: ")
    assert "said the test" in report.failure


@pytest.mark.parametrize("place", ["loss", "gradient", "weight"])
@pytest.mark.parametrize("value", [4.1, math.nan, math.inf])
def test_no_ratio_may_be_large_or_nan(place, value):
    good = Precision("float32", 4.0, 4.0, "a", 4.0, "a")
    assert good.within()
    bad = replace(good, **{place: value})
    assert not bad.within()
    step = StepErrors(0.0, 0.0, "a", 0.0, "a")
    assert VerifyReport((), (step,), precision=good).passed
    assert not VerifyReport((), (step,), precision=bad).passed


def test_ratios():
    zero, one = torch.zeros(4), torch.ones(4)
    assert _ratio([3 * one], [2 * one], [one], 0.0) == pytest.approx(2)
    assert _ratio([3 * one, zero], [one, one], [one, zero], 0.0) == pytest.approx(2)
    assert _ratio([3 * one], [one], [one], 2.0) == pytest.approx(2)
    assert _ratio([one], [one], [one], 0.0) == 0
    assert _ratio([zero], [one], [one], 0.0) == math.inf
    assert math.isnan(_ratio([one], [one * math.nan], [one], 1.0))
    assert math.isnan(_ratio([one * math.nan], [one], [one], 1.0))
