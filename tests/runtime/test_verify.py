"""`verify`: what passes, what does not, what is replayed, and how big plans are made small."""

import itertools
from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from shardwise.ir.errors import InvalidValueError, MismatchError, UnsupportedError
from shardwise.ir.layout import Layout, Shard
from shardwise.ir.lift import lifted
from shardwise.ir.mesh import Mesh
from shardwise.ir.trace import trace
from shardwise.runtime import verify_command
from shardwise.runtime.program import Program
from shardwise.runtime.redistribute import Router
from shardwise.runtime.thread_communicator import ThreadCommunicator, ThreadWorld
from shardwise.runtime.verify import Verification, verify
from shardwise.runtime.verify_command import spread, verify_language_model
from shardwise.runtime.verify_data import step_slots, token_documents
from shardwise.runtime.verify_project import project, small_config, smaller_mesh
from shardwise.runtime.verify_reference import Lifting
from shardwise.runtime.verify_report import (
    GRADIENT_TOLERANCE,
    StepErrors,
    VerifyReport,
    gradient_errors,
    weight_errors,
    worst,
)
from tests.support import fault_model, tiny_decoder
from tests.support.tiny_decoder import plan_of

BANDS = ((0, 8, "data", 2), (8, 16, "tensor_sequence", 2), (16, 64, "ulysses", 1))


@pytest.fixture(scope="module")
def decoder():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return spread(tiny_decoder.build())


@pytest.fixture(scope="module")
def wide(decoder):
    """Traces the decoder once in each dtype."""

    @cache
    def traced_in(dtype):
        return fault_model.traced(decoder, dtype)

    def tracer(model):
        return traced_in(str(next(model.parameters()).dtype).removeprefix("torch."))

    return tracer


# --- what passes, and what does not -------------------------------------------------------------


@pytest.mark.parametrize(
    ("mesh", "scheme", "training"),
    [
        ("x0=2@l data=2@l", "ZeRO-3", {"clip_norm": 0.1}),
        ("x0=2@l", "TP", {"trainable": ("*layers*", "table*"), "compute_dtype": "bfloat16"}),
        ("data=2@l", "DDP", {}),
        ("1", "DDP", {}),
    ],
)
def test_a_plan_of_the_model_passes(decoder, wide, mesh, scheme, training):
    before = {name: p.clone() for name, p in decoder.named_parameters()}
    plan = plan_of(mesh, scheme, BANDS)
    plan = replace(plan, training=replace(plan.training, **training))
    tracer = None if mesh == "1" else wide
    report = verify(plan, decoder, trace=tracer, notes=("of a test",))
    assert report.passed, str(report)
    assert "of a test" in str(report) and str(report).splitlines()[-1].startswith("passed (")
    assert len(report.steps) == 3
    for name, parameter in decoder.named_parameters():
        assert torch.equal(parameter, before[name]) and parameter.grad is None


class Bidirectional(nn.Module):
    """Attention over all positions, with no mask: padding is attended to."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(16, 8)

    def forward(self, input_ids, labels):
        x = self.table(input_ids).unsqueeze(1)
        x = F.scaled_dot_product_attention(x, x, x).squeeze(1)
        return F.cross_entropy((x @ self.table.weight.T).flatten(0, 1), labels.flatten())


def test_padding_that_counts_does_not_pass():
    """What the module computes of a document alone is not what a padded micro-batch computes."""
    model = Bidirectional()
    found = fault_model.traced(model)
    report = verify(plan_of("data=2@l", "DDP", ((0, 64, "data", 2),), found=found), model)
    assert not report.passed and not report.failure
    assert report.steps[0].gradient > 1e-3 and "NOT PASSED" in str(report)


def test_what_a_rank_raises_is_in_the_report(decoder, wide, monkeypatch):
    def run_slot(self, bucket, batch):
        raise MemoryError("out of memory, said the test")

    monkeypatch.setattr(Program, "run_slot", run_slot)
    report = verify(plan_of("x0=2@l", "DDP", BANDS), decoder, trace=wide)
    assert not report.passed and report.steps == ()
    assert "out of memory, said the test" in str(report) and "NOT PASSED" in str(report)


def test_a_model_of_other_inputs_brings_documents_of_its_own():
    class Regression(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

        def forward(self, features, targets):
            return F.mse_loss(self.down(torch.tanh(self.up(features))), targets, reduction="none")

    def loss(outputs, inputs):
        seen = (inputs["targets"] != 0).any(-1)
        return (outputs.sum(-1) * seen).sum(), seen.sum()

    def tracer(model):
        shape = "float64[B, S, 4]" if next(model.parameters()).dtype == torch.float64 else None
        shape = shape or "float32[B, S, 4]"
        dims = {"B": (1, 1024), "S": (1, 64)}
        return trace(model, {"features": shape, "targets": shape}, dims=dims, loss=loss)

    def sample(generator, sizes):
        features, targets = torch.randn((2, sizes["S"], 4), generator=generator).double()
        return {"features": features, "targets": targets}

    model = Regression()
    plan = plan_of("x0=2@l", "ZeRO-3", BANDS, found=tracer(model))
    with pytest.raises(InvalidValueError, match=r"features, targets.*give sample="):
        verify(plan, model, trace=tracer, loss=loss)
    report = verify(plan, model, trace=tracer, loss=loss, sample=sample)
    assert report.passed, str(report)


def test_errors_are_relative_with_a_floor():
    wanted = {"large": torch.tensor([3.0, -4.0]), "tiny": torch.tensor([1e-9])}
    found = {"large": torch.tensor([3.0, -4.4]), "tiny": torch.tensor([2e-9])}
    errors = gradient_errors(found, wanted)
    assert errors["large"] == pytest.approx(0.1) and errors["tiny"] == pytest.approx(2e-5)
    assert weight_errors(found, wanted)["tiny"] == pytest.approx(1e-9 / 4e-2)
    assert gradient_errors({"large": torch.zeros(3)}, {"large": torch.ones(2)}) == {
        "large": float("inf")
    }


@pytest.mark.parametrize("place", ["loss", "gradient", "weight"])
def test_no_report_passes_with_nan_or_without_steps(place):
    good = StepErrors(0.0, 0.0, "a", 0.0, "a")
    assert VerifyReport((), (good,)).passed
    assert not VerifyReport((), (good, replace(good, **{place: float("nan")}))).passed
    assert not VerifyReport((), (replace(good, **{place: 1e-6}),)).passed
    assert not worst([good, replace(good, **{place: float("nan")}), good]).within()
    assert not VerifyReport((), ()).passed
    assert not VerifyReport((), (good,), "rank 1 died").passed


# --- both sides in float64 ----------------------------------------------------------------------


class Casting(nn.Module):
    """Casts to float32 in all the ways that models do."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8))

    def forward(self, input_ids, labels):
        x = self.table(input_ids)
        x = (x.float() * self.scale.to(torch.float32)).to(x.dtype)
        x = x + torch.softmax(x, -1, dtype=torch.float32).type_as(x)
        x = x * torch.arange(8, dtype=torch.float32, device=x.device).add(0.3).sqrt()
        logits = (x @ self.table.weight.T).flatten(0, 1)
        return F.cross_entropy(logits.float(), labels.flatten())


def test_casts_of_the_model_are_lifted_on_both_sides():
    model = Casting()
    found = fault_model.traced(model)
    report = verify(plan_of("x0=2@l", "ZeRO-3", BANDS, found=found), model)
    assert report.passed, str(report)


def test_a_lifted_graph_has_no_narrow_float():
    graph = fault_model.traced(Casting(), "bfloat16").graph
    assert "bfloat16" in str(graph) and "float32" in str(graph)
    text = str(lifted(graph))
    assert "bfloat16" not in text and "float32" not in text and "float64" in text
    assert lifted(lifted(graph)) == lifted(graph)


def test_lifting_leaves_integers_alone():
    with Lifting():
        assert torch.arange(3).dtype == torch.int64
        assert torch.ones(2, dtype=torch.bfloat16).dtype == torch.float64
        assert torch.ones(2, dtype=torch.float64).float().dtype == torch.float64
        assert torch.ones(2, dtype=torch.float64).long().dtype == torch.int64


# --- what is replayed ---------------------------------------------------------------------------


@pytest.mark.parametrize("mesh", ["x0=2@l data=2@l", "x0=4@l", "data=3@l", "1"])
def test_slots_switch_and_have_empty_replicas_and_masked_targets(mesh):
    plan = plan_of(mesh, "DDP", BANDS)
    sample = token_documents(tiny_decoder.traced().graph)
    steps = [step_slots(plan, step, sample, ["S"], 0) for step in range(3)]
    for slots in steps:
        buckets = [slot.bucket for slot in slots]
        assert sorted(set(buckets)) == [0, 1, 2]
        assert all(a != b for a, b in itertools.pairwise(buckets))
    everything = [slot for slots in steps for slot in slots]
    counts = [tuple(len(row) for row in slot.rows) for slot in everything]
    if max(map(len, counts)) > 1:
        assert any(0 in row for row in counts) and any(len(set(row)) > 1 for row in counts)
    for slot in everything:
        assert slot.sizes["S"] % (Mesh.parse(mesh).axis("x0").size if "x0" in mesh else 1) == 0
        lengths = [len(document["labels"]) for document in slot.documents()]
        assert lengths and max(lengths) <= slot.sizes["S"] and min(lengths) >= 2
    labels = torch.cat([d["labels"] for slot in everything for d in slot.documents()])
    assert 0.05 < (labels == -100).double().mean() < 0.4


@pytest.mark.parametrize("mesh", ["x0=2@l data=2@l", "x0=2@l data=2@l ranks=x0,data"])
def test_replicas_are_numbered_as_the_batch_is_cut(mesh):
    plan = plan_of(mesh, "DDP", BANDS)
    whole = torch.arange(8)
    for rank in range(4):
        router = Router(plan.mesh, ThreadCommunicator(rank, ThreadWorld(4)), torch.device("cpu"))
        for bucket, axes in enumerate([("x0", "data"), ("data",), ("data",)]):
            layout = Layout(tuple((axis, Shard(0)) for axis in axes))
            rows = router.run(whole, Layout(()), layout, (8,))
            first = plan.replica(bucket, rank) * len(rows)
            assert rows.tolist() == list(range(first, first + len(rows)))


def test_a_batch_is_padded_with_ignored_targets():
    plan, graph = plan_of("data=2@l", "DDP", BANDS), tiny_decoder.traced().graph
    (slot, *_) = step_slots(plan, 0, token_documents(graph), ["S"], 0)
    slot = replace(slot, rows=(slot.rows[0][:1], ()), seats=2)
    batch, empty = slot.batch(0, graph), slot.batch(1, graph)
    length = len(slot.rows[0][0]["labels"])
    assert batch["labels"].shape == (2, slot.sizes["S"])
    assert batch["labels"][0, :length].tolist() == slot.rows[0][0]["labels"].tolist()
    assert set(batch["labels"][0, length:].tolist()) | set(batch["labels"][1].tolist()) == {-100}
    assert set(empty["labels"].flatten().tolist()) == {-100}
    assert set(empty["input_ids"].flatten().tolist()) == {0}


# --- big plans ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mesh", "small"),
    [
        ("x0=8@l", "x0=8@l"), ("x0=4@l data=2@l", "x0=4@l data=2@l"), ("x0=16@l", "x0=2@l"),
        ("x0=8@l data=8@l", "x0=2@l data=2@l"), ("stage=2@l x0=2@l", "stage=1@l x0=2@l"),
        ("x0=3@l x1=2@l x2=2@l data=4@l", "x0=2@l x1=2@l x2=2@l data=1@l"),
        ("x0=8@l data=8@l ranks=x0,data", "x0=2@l data=2@l ranks=x0,data"), ("1", "1"),
    ],
)  # fmt: skip
def test_meshes_of_more_ranks_are_cut(mesh, small):
    assert str(smaller_mesh(Mesh.parse(mesh))) == small


def test_a_big_plan_keeps_its_structure():
    plan = plan_of("x0=8@l data=8@l", "ZeRO-3", BANDS)
    found = project(plan, tiny_decoder.traced())
    assert found.plan.mesh.world_size == 4
    assert [b.batch_degree for b in found.plan.buckets] == [4, 2, 2]
    assert found.plan.strategies == plan.strategies
    assert set(found.plan.groups) == {("x0",), ("data",), ("x0", "data")}
    assert {c.master for c in found.plan.parameters} == {c.master for c in plan.parameters}
    assert found.plan.training.compute_dtype == "float64"
    assert found.notes == ("mesh: x0=8@l data=8@l -> x0=2@l data=2@l",)


def test_strategies_of_layers_are_taken_at_equal_depth(decoder, wide):
    """A plan whose layers differ, for a model with fewer layers."""
    plan = plan_of("x0=2@l", "DDP", ((0, 64, "tensor_sequence", 1),))
    other = replace(plan.strategies[0][1], implementation="tensor")
    runs = tuple(
        replace(plan.buckets[0].runs[0], strategy=name, count=count)
        for name, count in (("tensor_sequence", 2), ("other", 2))
    )
    plan = replace(
        plan,
        strategies=(*plan.strategies, ("other", other)),
        menu_strategies=2,
        buckets=(replace(plan.buckets[0], runs=runs),),
    )
    small = fault_model.traced(tiny_decoder.build_other())
    found = project(plan, small)
    assert [str(run) for run in found.plan.buckets[0].runs] == ["tensor_sequence", "other*2"]
    assert found.notes == ("units: 4 -> 3, strategies at equal depth",)
    report = verify(plan, decoder, trace=wide)
    assert report.passed, str(report)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16, 3])
@pytest.mark.parametrize(
    ("heads", "kv"), [(32, 8), (32, 32), (64, 4), (12, 12), (48, 6), (6, 3), (7, 1), (36, 12)]
)
def test_a_small_twin_falls_into_the_same_cases(ranks, heads, kv):
    mesh = Mesh.parse(f"x0={ranks}@l data=8@l")
    few = smaller_mesh(mesh).axis("x0").size
    config = {
        "model_type": "llama", "num_attention_heads": heads, "num_key_value_heads": kv,
        "hidden_size": heads * 64, "intermediate_size": 11008, "vocab_size": 32001,
        "num_hidden_layers": 32, "layer_types": ["full_attention"] * 32, "pad_token_id": None,
        "bos_token_id": 1, "rms_norm_eps": 1e-6,
    }  # fmt: skip
    small = small_config(config, mesh)
    h, k = small["num_attention_heads"], small["num_key_value_heads"]
    assert h % k == 0 and small["hidden_size"] == 8 * h
    assert small["num_hidden_layers"] == len(small["layer_types"]) == 2
    assert small["rms_norm_eps"] == 1e-6 and small["bos_token_id"] == 0
    if few > 1:
        assert (h % few == 0) == (heads % ranks == 0)
        assert (small["vocab_size"] % few == 0) == (32001 % ranks == 0)
        assert (small["intermediate_size"] % few == 0) == (11008 % ranks == 0)
        if heads % ranks == 0 and few < ranks:
            assert (k % few == 0, k < few) == (kv % ranks == 0, kv < ranks)


def test_gpt2_names_its_sizes_otherwise():
    config = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": None}
    small = small_config(config, Mesh.parse("x0=4@l"))
    assert small == config | {"n_embd": 64, "n_layer": 2, "n_head": 8}


# --- by the name of a model ---------------------------------------------------------------------

SPEC = "tests.support.tiny_decoder:build"


def test_a_small_model_is_replayed_whole():
    report = verify_language_model(plan_of("x0=2@l", "ZeRO-2", BANDS), SPEC, seed=3)
    assert report.passed, str(report)
    assert report.covered[0] == f"model {SPEC}, whole"


def test_a_plan_of_another_model_is_refused():
    with pytest.raises(MismatchError, match="at model"):
        verify_language_model(plan_of("x0=2@l"), "tests.support.tiny_decoder:build_other")


def test_a_large_model_without_a_config_is_refused(monkeypatch):
    monkeypatch.setattr(verify_command, "LARGEST", 100)
    with pytest.raises(UnsupportedError, match="are replayed as they are"):
        verify_language_model(plan_of("x0=2@l"), SPEC)


def test_verification_is_seeded(decoder, wide):
    plan = plan_of("data=2@l", "DDP", ((0, 64, "data", 2),))
    first, again, other = (
        Verification(plan, decoder, trace=wide, seed=seed, steps=1).wanted[0].loss
        for seed in (1, 1, 2)
    )
    assert first == again != other
    assert GRADIENT_TOLERANCE < 1e-10
