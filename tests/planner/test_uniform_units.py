"""Kept bytes of a Transformer layer against Korthikanti et al. 2022, and what its costs obey.

Reducing Activation Recomputation in Large Transformer Models, arXiv:2205.05198, table 2 (bytes of a
layer per token and hidden unit) and figure 7 (shares of the tensor-parallel baseline in percent, as
digitised by github.com/calculon-ai/calculon). h hidden, a heads, s length, t tensor-parallel ranks.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.training import TrainingSpec
from shardwise.planner.uniform_units import UniformUnits
from tests.support.uniform import GPT, LLAMA, korthikanti, plan, pricer

HALF = TrainingSpec(compute_dtype="float16")
STATISTICS = (8, 16)
"""Bytes per token of mean and deviation of two norms, which the paper leaves out, in half or full
precision."""

FORMULAS = {
    "": lambda t, scores: 10 + 24 / t + scores / t,
    "sp": lambda t, scores: 34 / t + scores / t,
    "recompute=attention": lambda t, scores: 10 + 24 / t,
    "sp recompute=attention": lambda t, scores: 34 / t,
    "recompute=layer": lambda t, scores: 2,
    "sp recompute=layer": lambda t, scores: 2 / t,
}
FIGURE_7 = {
    (6144, 64): {
        "sp": 66.84, "recompute=attention": 49.42, "sp recompute=attention": 16.18,
        "recompute=layer": 7.64,
    },
    (12288, 96): {
        "sp": 62.04, "recompute=attention": 56.53, "sp recompute=attention": 18.49,
        "recompute=layer": 8.71,
    },
    (20480, 128): {
        "sp": 58.31, "recompute=attention": 62.04, "sp recompute=attention": 20.27,
        "recompute=layer": 9.42,
    },
    (25600, 160): {
        "sp": 58.31, "recompute=attention": 62.04, "sp recompute=attention": 20.27,
        "recompute=layer": 9.42,
    },
}  # fmt: skip


def layer(shape, text, training=HALF):
    made = plan(text)
    return UniformUnits(shape, pricer(made.world_size, training=training)).costs(made).layer


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(sorted(FORMULAS)), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]),
    st.sampled_from([1024, 2048, 4096]), st.sampled_from(sorted(FIGURE_7)),
)  # fmt: skip
def test_table_2(text, tensor, batch, length, sizes):
    """Exactly, but for the statistics of the norms."""
    hidden, heads = sizes
    one = layer(korthikanti(hidden, heads), f"tp={tensor} mbs={batch} length={length} {text}")
    tokens, parallel = batch * length, text if tensor > 1 else text.replace("sp", "").strip()
    formula = FORMULAS[parallel](tensor, 5 * heads * length / hidden)
    more = one.kept_bytes / tokens - hidden * formula
    if "layer" in text:
        assert more == 0
    else:
        cut = tensor if parallel.startswith("sp") else 1
        assert STATISTICS[0] / cut - 1e-6 <= more <= STATISTICS[1] / cut + 1e-6


@pytest.mark.parametrize("sizes", sorted(FIGURE_7))
@pytest.mark.parametrize("text", ["sp", "recompute=attention", "sp recompute=attention",
                                  "recompute=layer"])  # fmt: skip
def test_figure_7(sizes, text):
    """Shares of the baseline within the 0.15 points to which the figure was read."""
    shape = korthikanti(*sizes)
    share = layer(shape, f"tp=8 {text}").kept_bytes / layer(shape, "tp=8").kept_bytes
    assert 100 * share == pytest.approx(FIGURE_7[sizes][text], abs=0.15)


SHAPES = st.sampled_from([GPT, LLAMA, korthikanti(1024, 16)])
TENSOR = st.sampled_from(["", "tp=2 ", "tp=4 sp "])


@settings(max_examples=30, deadline=None)
@given(SHAPES, TENSOR, st.sampled_from([256, 1024, 4096]))
def test_recomputation_trades_memory_for_time(shape, tensor, length):
    none, core, whole = (
        layer(shape, f"{tensor}length={length} recompute={kind}")
        for kind in ("none", "attention", "layer")
    )
    assert none.kept_bytes >= core.kept_bytes >= whole.kept_bytes > 0
    assert none.forward_s == core.forward_s == whole.forward_s
    assert none.backward_s <= core.backward_s <= whole.backward_s
    assert whole.backward_s == pytest.approx(none.backward_s + none.forward_s)


@settings(max_examples=30, deadline=None)
@given(SHAPES, TENSOR, st.sampled_from([256, 1024, 4096]))
def test_what_is_not_kept_is_opened_in_the_backward(shape, tensor, length):
    """A layer's own peak is at least as high without recomputation as what it recomputes."""
    none, whole = (
        layer(shape, f"{tensor}length={length} recompute={kind}") for kind in ("none", "layer")
    )
    assert whole.kept_bytes + whole.opened_bytes >= none.kept_bytes


@settings(max_examples=20, deadline=None)
@given(SHAPES, TENSOR, st.sampled_from(["none", "attention", "region", "layer"]))
def test_longer_documents_cost_more(shape, tensor, recompute):
    costs = [
        layer(shape, f"{tensor}length={length} recompute={recompute}")
        for length in (512, 1024, 2048, 4096)
    ]
    for name in ("forward_s", "backward_s", "kept_bytes", "opened_bytes"):
        values = [getattr(cost, name) for cost in costs]
        assert values == sorted(values)
    assert costs[-1].kept_bytes >= 2 * costs[-2].kept_bytes * (1 - 1e-12)


@pytest.mark.parametrize("shape", [GPT, LLAMA])
def test_the_share_of_weight_gradients_is_half_of_the_products(shape):
    """Without attention, half of the backward computes gradients of weights, and a little less
    with what memory bounds."""
    one = layer(shape, "length=512 mbs=8")
    assert 0.2 < one.weight_share < 0.5
    assert layer(shape, "length=8192").weight_share < one.weight_share
    assert layer(shape, "length=512 mbs=8 recompute=layer").weight_share < one.weight_share


@pytest.mark.parametrize("shape", [GPT, LLAMA])
def test_context_parallel_ranks_keep_their_part_of_the_sequence(shape):
    whole, cut = (layer(shape, f"length=8192 {text}") for text in ("cp=1", "cp=4"))
    assert cut.kept_bytes == pytest.approx(whole.kept_bytes / 4, rel=1e-6)
    assert whole.forward_s / 4 < cut.forward_s < whole.forward_s


def test_context_parallel_ranks_share_the_attention_core(monkeypatch):
    """Where it dominates, and keys travel for nothing, four ranks take about a quarter."""
    monkeypatch.setattr("shardwise.ir.hardware.HardwareProfile.collective_s", lambda *_: 0.0)
    whole, cut = (layer(LLAMA, f"length=131072 {text}") for text in ("cp=1", "cp=4"))
    for name in ("forward_s", "backward_s"):
        assert getattr(cut, name) == pytest.approx(getattr(whole, name) / 4, rel=0.05)


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_float8_halves_the_inputs_of_products_that_are_kept(tensor):
    """Inputs of qkv, out, up and down are 2 + 2 + 2 + 8 bytes a token and hidden unit; what is
    gathered is kept in parts."""
    made = plan(f"tp={tensor} sp length=2048" if tensor > 1 else "length=2048")
    one = pricer(tensor, "h100-sxm")
    plain, low = (
        UniformUnits(GPT, replace(one, linear_dtype=dtype)).costs(made).layer.kept_bytes
        for dtype in (None, "float8_e4m3fn")
    )
    assert plain - low == pytest.approx((2 + 2 + 2 + 8) / 2 * 2048 * GPT.hidden / tensor)
