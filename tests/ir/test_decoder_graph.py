"""The decoder's graph against traced models, closed forms, and Korthikanti et al. 2022."""

from dataclasses import replace

import pytest
import torch

from shardwise.ir.autograd_saves import SavesTable
from shardwise.ir.decoder import AttentionKernel, DecoderShape
from shardwise.ir.decoder_graph import LAYER, UNITS, decoder_graph
from shardwise.ir.errors import InvalidValueError
from shardwise.ir.expression import evaluate
from shardwise.ir.localise import localise
from shardwise.ir.mesh import Mesh
from shardwise.ir.strategy import Role, Strategy
from shardwise.ir.trace_language import trace_language_model
from tests.models.hugging_face import gpt2, llama

PRODUCTS = ("aten.linear.default", "aten.matmul.default", "aten.addmm.default",
            "aten.scaled_dot_product_attention.default")  # fmt: skip
LLAMA = DecoderShape(2, 32, 4, 2, 48, True, 64, rotary=True, rms_norm=True, bias=False)
GPT2 = DecoderShape(2, 32, 4, 4, 128, False, 64, positions=128, tied=True)


def product_flops(graph, start, stop, sizes):
    """FLOPs of the products and of attention among some operators."""
    chosen = (op for op in graph.operators[start:stop] if op.kind in PRODUCTS)
    return sum(evaluate(op.flops, sizes) for op in chosen)


@pytest.mark.parametrize(("shape", "made"), [(LLAMA, llama), (GPT2, gpt2)])
def test_a_decoder_has_the_parameters_and_the_flops_of_the_traced_model(shape, made):
    traced = trace_language_model(made(torch.float32), compute_dtype="float32", longest=128)
    assert shape.parameters == traced.fingerprint.parameter_count
    graph, units = decoder_graph(shape, "float32")
    for sizes in ({"B": 1, "S": 64}, {"B": 3, "S": 16}):
        expected = product_flops(traced.graph, 0, None, sizes)
        total = sum(
            product_flops(graph, *unit.operators, sizes)
            * (shape.layers if unit.name in LAYER else 1)
            for unit in units
        )
        assert total == expected


@pytest.mark.parametrize("shape", [LLAMA, GPT2])
def test_parameters_of_the_graph_are_those_of_the_shape(shape):
    graph, _ = decoder_graph(shape, "bfloat16")
    count = sum(evaluate(item.spec.element_count(), {}) for item in graph.parameters)
    assert count == shape.parameters - (shape.layers - 1) * shape.layer_parameters


def layer_bytes(tensor, sequence, attention=AttentionKernel.UNFUSED):
    """Kept bytes of a layer of GPT with dropout, per token and hidden element; s = 64, a = 8."""
    hidden, heads, sizes = 256, 8, {"B": 4, "S": 64}
    shape = DecoderShape(1, hidden, heads, heads, 4 * hidden, False, 512, attention, dropout=True)
    graph, units = decoder_graph(shape, "bfloat16")
    mesh = Mesh.parse(f"x0={tensor}@nvlink" if tensor > 1 else "1")
    roles = tuple((axis.name, Role.TENSOR) for axis in mesh.axes)
    name = "tensor_sequence" if sequence else "tensor"
    program = localise(graph, units, mesh, [Strategy(name, roles, (), ())] * len(units))
    table = SavesTable(program, lambda _: True)
    total, known, roots = 0, set(), {}
    for name in LAYER:
        saves = table.of(program.units[UNITS.index(name)])
        total += evaluate(saves.own, sizes)
        roots |= saves.roots
        for value, size in saves.shared.items():
            storage, whole = roots.get(value, (value, size))
            if storage not in known:
                known.add(storage)
                total += evaluate(whole, sizes)
    return total / (sizes["B"] * sizes["S"] * hidden), heads * sizes["S"] / hidden


def test_a_layer_keeps_34_and_5_a_s_over_h():
    """Section 4.1, equation 1; beyond it only the norms' statistics, two numbers a row each."""
    kept, scores = layer_bytes(1, False)
    assert kept == pytest.approx(34 + 5 * scores + 8 / 256, rel=1e-12)


@pytest.mark.parametrize("tensor", [2, 4, 8])
def test_tensor_parallel_layers_keep_10_and_24_over_t(tensor):
    """Section 4.2.1, equation 2."""
    kept, scores = layer_bytes(tensor, False)
    assert kept == pytest.approx(10 + 24 / tensor + 5 * scores / tensor + 8 / 256, rel=1e-12)


@pytest.mark.parametrize("tensor", [2, 4, 8])
def test_with_sequence_parallelism_all_is_cut_but_the_gathered_inputs(tensor):
    """Equation 4 has 34 / t because Megatron keeps parts of the two gathered inputs (2 each) and
    gathers them again; the program that we emit keeps them."""
    kept, scores = layer_bytes(tensor, True)
    gathered = 4 * (1 - 1 / tensor)
    expected = (34 + 5 * scores + 8 / 256) / tensor + gathered
    assert kept == pytest.approx(expected, rel=1e-12)


def test_the_flash_kernel_keeps_no_scores():
    kept, _ = layer_bytes(1, False, AttentionKernel.FLASH)
    log_sums = 4 * 8 / 256
    assert kept == pytest.approx(34 + 8 / 256 + log_sums, rel=1e-12)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hidden": 0}, "hidden of a decoder is 0"),
        ({"layers": -1}, "layers of a decoder is -1"),
        ({"heads": 5}, "heads divide hidden"),
        ({"kv_heads": 3}, "heads divide heads"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(change, says):
    sizes = {
        "layers": 1, "hidden": 8, "heads": 4, "kv_heads": 2, "ffn": 8, "gated": False,
        "vocabulary": 4,
    }  # fmt: skip
    with pytest.raises(InvalidValueError, match=says):
        DecoderShape(**{**sizes, **change})


def moved_per_element(composed, name):
    """Bytes that the operators of one norm or rotation move, for each element that they change."""
    shape = replace(LLAMA, composed=composed, hidden=4096, heads=32, kv_heads=32, ffn=128)
    graph, _ = decoder_graph(shape, "bfloat16")
    sizes = {"B": 1, "S": 2048}
    mine = [op for op in graph.operators if op.name == name or op.name.startswith(f"{name}_")]
    return sum(evaluate(op.moved_bytes, sizes) for op in mine) / (2048 * 4096)


def test_a_composed_norm_goes_over_its_rows_in_float32():
    """In bytes: widen 2 + 4, square 4 + 4, mean 4, scale 4 + 4, weigh 4 + 4, round 4 + 2."""
    assert moved_per_element(False, "norm1") == pytest.approx(4, rel=0.01)
    assert moved_per_element(True, "norm1") == pytest.approx(40, rel=0.01)


def test_composed_rotary_positions_are_widened_and_rounded():
    """In bytes: widen 2 + 4, turn 4 + 4, round 4 + 2; the angles are those of one head of 32."""
    fused, composed = (
        sum(
            evaluate(op.moved_bytes, {"B": 1, "S": 64})
            for op in decoder_graph(replace(LLAMA, composed=made), "bfloat16")[0].operators
            if op.name in ("q_wide", "q_turned", "q_rotated")
        )
        for made in (False, True)
    )
    values, angles = 64 * LLAMA.hidden, 64 * LLAMA.head_size
    assert (fused, composed) == (4 * values + 2 * angles, 20 * values + 4 * angles)


@pytest.mark.parametrize("shape", [LLAMA, GPT2])
def test_composing_changes_no_product_and_no_parameter(shape):
    graphs = [decoder_graph(replace(shape, composed=made), "bfloat16")[0] for made in (False, True)]
    sizes = {"B": 2, "S": 64}
    assert len({product_flops(graph, 0, None, sizes) for graph in graphs}) == 1
    assert graphs[0].parameters == graphs[1].parameters
    assert (graphs[0].operators == graphs[1].operators) == (shape is GPT2)
