"""The front door: deterministic plans, limits, errors, the plan that comes back."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from shardwise.ir import plan_text
from shardwise.ir.config_files import load_machine
from shardwise.ir.errors import (
    InfeasibleError,
    InvalidValueError,
    MismatchError,
    UnsupportedError,
    UntraceableModelError,
)
from shardwise.ir.lengths import Lengths
from shardwise.ir.lengths_file import write_lengths
from shardwise.ir.plan import Plan
from shardwise.ir.trace import trace
from shardwise.ir.trace_language import trace_language_model
from shardwise.ir.training import TrainingSpec
from shardwise.planner.api import plan
from shardwise.runtime.program import Program
from tests.support import tiny_decoder
from tests.support.planning import SOME, TRAINING, lengths, machine, traced_hand_model


def made(**changes):
    arguments = {
        "cluster": machine(2), "lengths": SOME, "tokens_per_step": 8192, "training": TRAINING,
    } | changes  # fmt: skip
    return plan(traced_hand_model(), **arguments)


def test_the_same_input_gives_the_same_plan():
    one, two = made(), made()
    assert one.digest() == two.digest()
    assert Plan.parse(str(one)) == one
    assert one.bound_s <= one.step_s
    assert one.gap == 0.0


def test_files_and_values_give_the_same_plan(tmp_path):
    path = tmp_path / "lengths.csv"
    write_lengths(SOME, path)
    from_files = made(cluster="configs/clusters/local-2.toml", lengths=path)
    values = made(cluster="configs/clusters/local-2.toml")
    assert from_files.buckets == values.buckets
    assert from_files.priced_for.cluster.name == "local-2"


def test_a_limit_is_kept_and_named():
    roomy = made()
    most = max(bucket.largest_peak_bytes() for bucket in roomy.buckets)
    limit = int(most) - 1
    tight = made(memory_limit_bytes_per_rank=limit)
    assert max(bucket.largest_peak_bytes() for bucket in tight.buckets) <= limit
    assert tight.step_s >= roomy.step_s
    assert tight.priced_for.memory_limit_bytes_per_rank == limit


def test_errors():
    with pytest.raises(InfeasibleError, match=r"bytes short; nearest fixes"):
        made(memory_limit_bytes_per_rank=1)
    for bad in (0, -1, 10**15):
        with pytest.raises(InvalidValueError, match="memory limit"):
            made(memory_limit_bytes_per_rank=bad)
    with pytest.raises(InvalidValueError, match="tokens_per_step"):
        made(tokens_per_step=0)
    cluster, _, software = machine(2)
    _, other, _ = load_machine("configs/clusters/h100-8x8.toml")
    with pytest.raises(MismatchError):
        made(cluster=(cluster, other, software))


def test_the_exact_shortfall_makes_it_feasible():
    with pytest.raises(InfeasibleError) as caught:
        made(memory_limit_bytes_per_rank=1)
    text = str(caught.value)
    short = int(text.partition(" bytes short")[0].rpartition(" ")[2])
    assert made(memory_limit_bytes_per_rank=1 + short).buckets
    with pytest.raises(InfeasibleError):
        made(memory_limit_bytes_per_rank=short)


def test_one_rank_plans_too():
    alone = made(cluster=machine(1))
    assert str(alone.mesh) == "1"
    assert alone.groups == ()
    assert alone.free_switching_price == pytest.approx(1.0)


# From a torch module

TEXT = {"input_ids": ("B", "S"), "labels": ("B", "S")}
SHORT = lengths((1, 16, 40), (16, 64, 8))


def from_module(model=None, inputs=TEXT, **changes):
    arguments = {"cluster": machine(2), "lengths": SHORT, "tokens_per_step": 512} | changes
    if model is None:
        with torch.device("meta"):
            model = tiny_decoder.build()
    return plan(model, inputs, **arguments)


def test_a_module_is_planned_as_its_trace_is():
    """B and S up to what the search uses, in the compute dtype of the recipe."""
    training = TrainingSpec(compute_dtype="bfloat16")
    made = from_module(training=training)
    with torch.device("meta"):
        model = tiny_decoder.build()
    traced = trace_language_model(model, compute_dtype="bfloat16", longest=64)
    assert made.model == traced.fingerprint
    by_trace = plan(
        traced, cluster=machine(2), lengths=SHORT, tokens_per_step=512, training=training
    )
    assert made.digest() == by_trace.digest()
    assert made.explain() == plan_text.render(made)


class Regression(nn.Module):
    """features [B, S, 8] -> values [B, S, 1]; returns no loss."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))

    def forward(self, features):
        return self.layers(features)


def squares(outputs, inputs):
    weight = inputs["weights"]
    return ((outputs[..., 0] - inputs["wanted"]) ** 2 * weight).sum(), weight.sum()


REGRESSION = {
    "features": "float32[B, S, 8]", "wanted": "float32[B, S]", "weights": "float32[B, S]",
}  # fmt: skip


def test_a_model_of_other_inputs_with_a_loss_of_its_own_is_planned_and_runs(monkeypatch):
    """The plain form of the whole path: plan, then Program, with the same inputs and loss."""
    monkeypatch.delenv("RANK", raising=False)
    torch.manual_seed(0)
    model = Regression()
    made = from_module(model, REGRESSION, loss=squares, cluster=machine(1))
    program = Program.from_plan(model, made, inputs=REGRESSION, loss=squares)
    assert program.rank == 0
    seats, length = made.buckets[0].seats, made.buckets[0].padded[0].sizes[0][1]
    given = {
        "features": torch.randn(seats, length, 8),
        "wanted": torch.randn(seats, length),
        "weights": (torch.rand(seats, length) < 0.5).float(),
    }
    result = program.run_slot(0, given)
    total, weight = squares(model(given["features"]), given)
    assert result.loss_sum == pytest.approx(total.item(), rel=1e-5)
    assert result.weight == weight.item() == program.finish_step()
    (total / weight).backward()
    for name, master in program.named_parameters():
        wanted = model.get_parameter(name).grad
        assert torch.allclose(master.grad, wanted, rtol=1e-4, atol=1e-6), name


def test_a_program_of_another_model_is_refused(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    made = from_module(cluster=machine(1))
    with pytest.raises(MismatchError, match="at model"):
        Program.from_plan(tiny_decoder.build_other(), made)
    with pytest.raises(MismatchError, match="the plan is for 2 ranks"):
        Program.from_plan(tiny_decoder.build(), from_module())


class CountsDocuments(nn.Module):
    """Reads its batch size as a number, so that the trace holds for that one alone."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(64, 8)

    def forward(self, input_ids, labels):
        rows = torch.stack([self.table(row) for row in input_ids])
        return nn.functional.cross_entropy(rows.flatten(0, 1)[:, :8], labels.flatten() % 8)


def one_line(error):
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"inputs": None}, InvalidValueError, "without inputs"),
        ({"inputs": {}}, InvalidValueError, "without inputs"),
        ({"model": 3}, InvalidValueError, "plan(int, ...)"),
        ({"inputs": {"input_ids": ("B", "T"), "labels": ("B", "T")}}, InvalidValueError,
         "the lengths are of the dim S and the inputs have the sizes B, T"),
        ({"inputs": {"input_ids": ("B", 64), "labels": ("B", 64)}}, InvalidValueError,
         "the inputs have the sizes B"),
        ({"lengths": Lengths.parse('S_src empty=0 "test" (0,64]:8:256')}, InvalidValueError,
         "the lengths are of the dim S_src"),
        ({"inputs": {"input_ids": (4, "S"), "labels": (4, "S")}}, InvalidValueError,
         "a fixed number of documents (sizes: S)"),
        ({"inputs": {"input_ids": (4, 8), "labels": (4, 8)}}, InvalidValueError,
         "none that is named"),
        ({"inputs": {"input_ids": ("B", "S"), "labels": ("B", "S_tgt")}}, UnsupportedError,
         "the sizes S_tgt, which the lengths do not tell"),
        ({"inputs": TEXT | {"pixels": "float32[B, W]"}}, UnsupportedError, "the sizes W"),
        ({"inputs": TEXT | {"pixels": ("B",)}}, InvalidValueError, "pixels, which Decoder.forward"),
        ({"model": CountsDocuments()}, UntraceableModelError, "B"),
    ],
)  # fmt: skip
def test_bad_calls_are_one_line(changes, kind, words):
    with pytest.raises(kind) as caught:
        from_module(**changes)
    assert words in one_line(caught)


def test_a_trace_has_its_own_inputs_and_must_hold_for_every_slot():
    traced = traced_hand_model()
    for more in ({"inputs": TEXT}, {"loss": squares}):
        with pytest.raises(InvalidValueError, match="a trace has its own"):
            plan(traced, **more, cluster=machine(2), lengths=SOME, tokens_per_step=512)
    two = Lengths.parse('S_src,S_tgt empty=0 "test" (0,64]*(0,64]:8:256,256')
    with pytest.raises(InvalidValueError, match="S_src, S_tgt and the inputs have the sizes B, S"):
        made(lengths=two)
    for dims, words in (
        ({"B": (1, 512), "S": (1, 32)}, "holds for S up to 32 and the longest document, padded"),
        ({"B": (1, 511), "S": (1, 64)}, "holds for B up to 511 and the largest slot has 512"),
    ):
        found = trace(tiny_decoder.build(), TEXT, dims=dims)
        with pytest.raises(InvalidValueError) as caught:
            plan(found, cluster=machine(2), lengths=SHORT, tokens_per_step=512)
        assert words in one_line(caught)
    enough = replace(found, graph=replace(found.graph, symbols=traced.graph.symbols))
    assert plan(enough, cluster=machine(2), lengths=SHORT, tokens_per_step=512).buckets


def test_planning_a_trace_needs_no_torch():
    code = (
        "import sys, shardwise.planner.api, shardwise.planner.command; "
        "from shardwise import plan, TracedModel; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_command_says_the_coverage_before_it_searches(monkeypatch, tmp_path):
    from shardwise.planner import command

    write_lengths(SHORT, tmp_path / "lengths.csv")
    said = []

    def searched(traced, **_):
        said.append("searched")
        raise InfeasibleError("enough")

    monkeypatch.setattr(command, "plan", searched)
    with pytest.raises(InfeasibleError):
        command.plan_language_model(
            "tests.support.tiny_decoder:build",
            training=TrainingSpec(),
            cluster="configs/clusters/local-2.toml",
            lengths=tmp_path / "lengths.csv",
            tokens_per_step=512,
            say=said.append,
        )
    assert said[0].startswith("coverage: rules can shard all of ") and said[1:] == ["searched"]
