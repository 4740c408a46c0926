"""Traced graphs compute what their modules compute, and the model is left as it was."""

import gc
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from shardwise.ir import trace_export
from shardwise.ir.errors import InvalidValueError, UntraceableModelError
from shardwise.ir.graph import OperatorGraph
from shardwise.ir.passes_functional import is_in_place
from shardwise.ir.trace import trace
from shardwise.ir.trace_inputs import trace_inputs
from shardwise.runtime.interpreter import interpret, module_values
from tests.models import hand_written, hugging_face
from tests.support.traced import (
    DIMS,
    MODELS,
    TEXT,
    differences,
    text_batch,
    traced_encoder_decoder,
    traced_model,
    values_of,
)

ROOT = Path(__file__).parents[2]
LENGTHS = (2, 16, 41)


@pytest.fixture(params=MODELS)
def pair(request):
    return traced_model(request.param)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("length", LENGTHS)
def test_graph_equals_module(pair, rows, length):
    loss, gradient = differences(*pair, text_batch(rows, length))
    assert loss == 0.0
    assert gradient <= 1e-15


def test_graph_is_printed_and_parsed(pair):
    graph = pair[1].graph
    assert OperatorGraph.parse(str(graph)) == graph


def test_graph_holds_no_leftovers(pair):
    kinds = {operator.kind for operator in pair[1].graph.operators}
    assert not {k for k in kinds if k.split(".")[1] in ("view", "contiguous", "clone", "alias")}
    assert not {k for k in kinds if "sym_size" in k or "_assert" in k or is_in_place(k)}
    assert all(o.source or o.kind == "aten.full.default" for o in pair[1].graph.operators)


def test_constraints_on_sizes_and_names(pair):
    model, traced = pair
    assert [str(symbol) for symbol in traced.graph.symbols] == ["B in 1:64", "S in 1:128"]
    names = dict(model.named_parameters())
    whole = {p.section.source if p.section else p.name for p in traced.graph.parameters}
    assert whole == set(names)
    count = sum(p.numel() for p in model.parameters())
    assert traced.fingerprint.parameter_count == count


def test_mlp_and_images():
    """No lengths: only B is named, other sizes are fixed."""
    torch.manual_seed(0)
    model = hand_written.MLP().double()
    traced = trace(model, {"x": "float64[B, 8]", "target": "float64[B, 4]"}, dims={"B": (1, 64)})
    for rows in (1, 2, 7):
        batch = {"x": torch.randn(rows, 8).double(), "target": torch.randn(rows, 4).double()}
        assert differences(model, traced, batch) == (0.0, 0.0)


def test_two_lengths():
    model, traced = traced_encoder_decoder()
    for rows, source, target in ((1, 9, 4), (2, 5, 12), (2, 8, 8)):
        batch = {
            "input_ids": text_batch(rows, source)["input_ids"],
            "labels": text_batch(rows, target)["labels"],
        }
        loss, gradient = differences(model, traced, batch)
        assert loss == 0.0 and gradient <= 1e-14


def test_the_process_that_traced_exits_cleanly():
    code = (
        "import gc\n"
        "from tests.models.hand_written import GPT\n"
        "from tests.support.traced import DIMS, TEXT\n"
        "from shardwise.ir.trace import trace\n"
        "for layers in (1, 2):\n"
        "    traced = trace(GPT(layers), TEXT, dims=DIMS)\n"
        "    gc.collect()\n"
        "print(len(traced.units))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "4"), done.stderr[-2000:]


def test_trace_is_the_same_without_the_faster_mode(monkeypatch):
    model, fast = traced_model("llama")
    monkeypatch.setattr(trace_export, "remembering", nullcontext)
    plain = trace(model, TEXT, dims=DIMS)
    assert str(without_sources(fast.graph)) == str(without_sources(plain.graph))
    helper = next(o for o in fast.graph.operators if o.kind == "aten.neg.default")
    assert helper.module_path == "model.layers.0.self_attn" and helper.source
    assert helper.source != next(o.source for o in plain.graph.operators if o.name == helper.name)


def without_sources(graph):
    return replace(graph, operators=tuple(replace(o, source="") for o in graph.operators))


def test_no_weights_are_needed():
    with torch.device("meta"):
        model = hand_written.GPT().double()
    traced = trace(model, TEXT, dims=DIMS)
    real, of_real = traced_model("hand-written")
    assert str(traced.graph) == str(of_real.graph)
    assert all(parameter.is_meta for parameter in model.parameters())
    loss, gradient = differences(real, traced, text_batch(2, 9))
    assert loss == 0.0 and gradient <= 1e-15


def test_the_model_is_left_as_it_was():
    model = hugging_face.llama(num_hidden_layers=1)
    model.config.use_cache = True
    before = {name: (id(value), value.dtype) for name, value in model.state_dict().items()}
    owned = [id(parameter) for parameter in model.parameters()]
    trace(model, TEXT, dims=DIMS, dtype="bfloat16")
    with pytest.raises(UntraceableModelError):
        trace(model, {"input_ids": ("B", 1 << 20)}, dims={"B": (1, 8)}, loss=_fails)
    assert [id(parameter) for parameter in model.parameters()] == owned
    assert {name: value[1] for name, value in before.items()} == {
        name: value.dtype for name, value in model.state_dict().items()
    }
    assert model.config.use_cache is True
    assert "TRANSFORMERS_SDPA_FORCE_GQA" not in os.environ


def _fails(outputs, inputs):
    raise RuntimeError("no loss today")


def test_compute_dtype_is_of_parameters_not_of_buffers():
    model = hugging_face.llama(torch.float32, num_hidden_layers=1)
    graph = trace(model, TEXT, dims=DIMS, dtype="bfloat16").graph
    assert {p.spec.dtype for p in graph.parameters} == {"bfloat16"}
    assert {c.spec.dtype for c in graph.constants} == {"float32"}
    linear = next(o for o in graph.operators if o.kind == "aten.linear.default")
    assert linear.outputs[0].dtype == "bfloat16"
    assert graph.spec(graph.outputs[0]).dtype == "float32"  # logits are cast for the loss


def test_tied_frozen_and_unused_parameters():
    model = hand_written.GPT().double()
    model.blocks[0].up.weight.requires_grad_(False)
    model.register_parameter("unused", nn.Parameter(torch.ones(3)))
    parameters = {p.name: p for p in trace(model, TEXT, dims=DIMS).graph.parameters}
    assert parameters["table.weight"].aliases == ("head.weight",)
    assert "head.weight" not in parameters
    assert not parameters["blocks.0.up.weight"].trainable
    assert parameters["unused"].trainable


class Constants(nn.Module):
    """A persistent buffer, one that is not, a tensor attribute, and tensors made in forward."""

    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.arange(4.0))
        self.register_buffer("derived", torch.arange(4.0) + 1, persistent=False)
        self.plain = torch.arange(4.0) + 2
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        table = torch.tensor([1.0, 2.0, 3.0, 4.0])
        half = torch.tensor(0.5)
        y = x * self.weight + self.kept * self.derived + self.plain * table
        return (y * half * x.shape[0]).mean()


def test_constants():
    model = Constants()
    traced = trace(model, {"x": "float32[B, 4]"}, dims={"B": (1, 9)})
    found = {c.name: c.persistent for c in traced.graph.constants}
    assert found == {"kept": True, "derived": False, "plain": False, "lifted_tensor_0": False}
    assert set(traced.constants) == {"plain", "lifted_tensor_0"}
    batch = {"x": torch.randn(3, 4)}
    total, weight = interpret(traced.graph, values_of(model, traced, batch))
    assert torch.allclose(total / weight, model(**batch))


class NoGradient(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x):
        y = x * self.weight
        with torch.no_grad():
            scale = y.abs().mean() + 1
        with torch.autocast("cpu", enabled=False):
            z = (y / scale).float() * 2
        return z.pow(2).mean() + 0 * y.detach().sum()


def test_regions_without_gradient():
    model = NoGradient()
    traced = trace(
        model, {"x": "float32[B, 4]"}, dims={"B": (1, 9)},
        loss=lambda outputs, inputs: (outputs, 1),
    )  # fmt: skip
    batch = {"x": torch.randn(3, 4)}
    total, weight = interpret(traced.graph, values_of(model, traced, batch))
    ours = torch.autograd.grad(total / weight, model.weight)[0]
    theirs = torch.autograd.grad(model(**batch), model.weight)[0]
    assert torch.equal(ours, theirs)
    assert "aten.detach.default" in {o.kind for o in traced.graph.operators}


def test_loss_function_takes_inputs_that_the_model_does_not():
    model = nn.Linear(8, 4).double()

    def loss(outputs, inputs):
        wrong = (outputs - inputs["target"]).abs()
        return wrong.sum(), inputs["target"].numel()

    inputs = {"input": "float64[B, 8]", "target": "float64[B, 4]"}
    traced = trace(model, inputs, dims={"B": (1, 9)}, loss=loss)
    batch = {"input": torch.randn(3, 8).double(), "target": torch.randn(3, 4).double()}
    total, weight = interpret(traced.graph, values_of(model, traced, batch))
    assert weight.item() == 12
    assert torch.equal(total, (model(batch["input"]) - batch["target"]).abs().sum())


def test_all_outputs_without_the_contract():
    model = hugging_face.llama(num_hidden_layers=1)
    traced = trace(model, {"input_ids": ("B", "S")}, dims=DIMS, contract=False)
    ids = text_batch(2, 11)["input_ids"]
    (logits,) = interpret(traced.graph, values_of(model, traced, {"input_ids": ids}))
    assert torch.equal(logits, model(input_ids=ids).logits)


def test_evaluation_is_a_trace_of_its_own():
    model = hand_written.GPT(1)
    model.blocks[0].drop.p = 0.1
    training = trace(model, TEXT, dims=DIMS)
    evaluation = trace(model.eval(), TEXT, dims=DIMS)
    kinds = [{o.kind for o in t.graph.operators} for t in (training, evaluation)]
    assert [("aten.dropout.default" in k) for k in kinds] == [True, False]
    assert (training.training, evaluation.training) == (True, False)
    assert training.graph.parameters == evaluation.graph.parameters


def test_fixed_sizes_and_tensors():
    """What holds for one length only is traced with an int in its place."""
    model = hand_written.Maker(_chunks)
    with pytest.raises(UntraceableModelError, match=r"S"):
        trace(model, {"x": "float32[B, S, 8]"}, dims={"B": (1, 9), "S": (1, 64)})
    for given in ("float32[B, 32, 8]", torch.zeros(2, 32, 8)):
        dims = {"B": (1, 9)} if isinstance(given, str) else {}
        traced = trace(model, {"x": given}, dims=dims)
        batch = {"x": torch.randn(2, 32, 8)}
        total, weight = interpret(traced.graph, values_of(model, traced, batch))
        assert torch.allclose(total / weight, model(**batch))


def _chunks(self, x):
    total = 0
    for part in range(x.shape[1] // 16):
        total = total + (x[:, 16 * part : 16 * part + 16] * self.scale).mean()
    return (total * torch.ones(x.shape[0])).mean()


def test_ranges_are_narrowed_to_where_the_model_holds():
    def branch(self, x):
        return (x * self.scale).mean() if x.shape[1] > 3 else (x * self.scale).sum()

    model = hand_written.Maker(branch)
    traced = trace(model, {"x": "float32[B, S, 8]"}, dims={"B": (1, 9), "S": (1, 64)})
    assert [str(symbol) for symbol in traced.graph.symbols] == ["B in 1:9", "S in 4:64"]


def test_a_cut_that_shapes_depend_on_narrows_the_range():
    model = hand_written.Maker(lambda self, x: (x[:, :4] * self.scale).mean())
    traced = trace(model, {"x": "float32[B, S, 8]"}, dims={"B": (1, 9), "S": (1, 64)})
    assert [str(symbol) for symbol in traced.graph.symbols] == ["B in 1:9", "S in 4:64"]


def test_a_reshape_to_the_sizes_of_the_example_is_refused():
    model = hand_written.Maker(lambda self, x: (x.view(x.shape[0], 48, 8) * self.scale).mean())
    with pytest.raises(UntraceableModelError, match="S"):
        trace(model, {"x": "float32[B, S, 8]"}, dims={"B": (1, 9), "S": (1, 64)})


def test_sizes_are_computed_as_by_the_model():
    def function(self, x):
        length = x.shape[1]
        half, rest = length // 2, length - length // 2
        y = torch.cat([x[:, :half] * self.scale, x[:, -rest:] * 2], 1)
        return y * (length % 4), y.new_zeros(-(-length // 3)), y * min(length, 7), y * length**2

    model = hand_written.Maker(function).double()
    traced = trace(
        model, {"x": "float64[B, S, 8]"}, dims={"B": (1, 9), "S": (2, 64)}, contract=False
    )
    for length in (4, 5, 9):
        x = torch.randn(2, length, 8).double()
        found = interpret(traced.graph, values_of(model, traced, {"x": x}))
        for one, other in zip(found, model(x), strict=True):
            assert torch.equal(one, other)


def test_examples_are_different_and_inside_their_ranges():
    shapes = {"x": ("B", "S", "T"), "y": ("S", "U")}
    dims = {"B": (1, 3), "S": (1, 512), "T": (30, 60), "U": (40, 4000)}
    sizes = trace_inputs(shapes, dims).examples()
    assert len(set(sizes.values())) == 4 and min(sizes.values()) >= 2
    assert all(low <= sizes[name] <= high for name, (low, high) in dims.items())


class Deciding(nn.Module):
    def __init__(self, decide):
        super().__init__()
        self.layers = nn.ModuleList([nn.Identity(), Inner(decide)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.mean()


class Inner(nn.Module):
    def __init__(self, decide):
        super().__init__()
        self.weight, self.decide = nn.Parameter(torch.ones(4)), decide

    def forward(self, x):
        return self.decide(self, x)


def _on_values(self, x):
    if x.sum() > 0:
        x = x + 1
    return x * self.weight


def _on_item(self, x):
    return x * self.weight * int(x.max().item())


def _on_number(self, x):
    return (x[x > 0] * self.weight[0]).reshape(-1)


def _autocast(self, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.linear(x, self.weight.diag())


@pytest.mark.parametrize(
    ("decide", "line", "remedy"),
    [
        (_on_values, "if x.sum() > 0:", "torch.where"),
        (_on_item, "int(x.max().item())", "keep it a tensor"),
        (_on_number, "", "shape"),
        (_autocast, "", "compute"),
    ],
)
def test_untraceable_models_name_module_and_line(decide, line, remedy, capsys):
    with pytest.raises(UntraceableModelError) as caught:
        trace(Deciding(decide), {"x": "float32[B, 4]"}, dims={"B": (1, 9)}, name="Deciding")
    message = str(caught.value)
    assert "\n" not in message
    assert "layers.1" in message and "test_trace.py:" in message, message
    assert line in message and remedy in message, message
    assert "def forward" not in capsys.readouterr().err


def test_an_error_of_the_model_itself_is_kept():
    with pytest.raises(UntraceableModelError, match="no loss today") as caught:
        trace(nn.Linear(4, 4), {"input": "float32[B, 4]"}, dims={"B": (1, 9)}, loss=_fails)
    assert "test_trace.py" in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize(
    ("inputs", "dims", "message"),
    [
        ({}, {}, "is empty"),
        ({"x": ("B", 4)}, {}, "dims gives B"),
        ({"x": ("B", 4)}, {"B": (0, 4)}, "1 <= smallest"),
        ({"x": ("B", 4)}, {"B": (1, 4), "S": (1, 4)}, "ranges for S"),
        ({"x": 4}, {"B": (1, 4)}, "input x is 4"),
        ({"x": "float32[B*2, 4]"}, {"B": (1, 4)}, "names or ints"),
        ({"y": ("B", 4)}, {"B": (1, 4)}, "does not take; it takes input"),
    ],
)
def test_bad_arguments(inputs, dims, message):
    with pytest.raises(InvalidValueError, match=r".*") as caught:
        trace(nn.Linear(4, 4), inputs, dims=dims)
    assert message in str(caught.value)


def test_a_batch_of_one_only():
    traced = trace(
        nn.Linear(4, 4), {"input": "float32[B, S, 4]"}, dims={"B": (1, 1), "S": (1, 9)},
        loss=lambda outputs, inputs: (outputs.sum(), inputs["input"].shape[1]),
    )  # fmt: skip
    assert [str(symbol) for symbol in traced.graph.symbols] == ["S in 1:9"]
    assert str(traced.graph.inputs[0]) == "input float32[1, S, 4]"


def test_nothing_of_torch_stays_changed():
    from torch.fx import proxy
    from torch.fx.experimental import sym_node

    before = (sym_node.SymNode._mul, proxy.CapturedTraceback)
    trace(hand_written.MLP(), _floats(), dims={"B": (1, 9)})
    gc.collect()
    assert (sym_node.SymNode._mul, proxy.CapturedTraceback) == before


def _floats():
    return {"x": "float32[B, 8]", "target": "float32[B, 4]"}


def test_module_values_are_the_modules_own_tensors():
    model, traced = traced_model("hand-written")
    values = module_values(model, traced.graph)
    assert values["table.weight"] is model.head.weight
