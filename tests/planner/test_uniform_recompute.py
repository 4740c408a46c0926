"""torchtitan's selective option `op` counted by hand: bytes that a layer keeps, time spent again.

T tokens, h hidden, f inner width, kv the width of all key heads, 2 bytes each. Of the products wq,
wk, wv, wo, w1, w3, w2 the odd ones are kept (wq, wv, w1, w2), attention's result, and the layer's
input.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.decoder import AttentionKernel
from shardwise.ir.decoder_graph import LAYER, UNITS
from shardwise.planner.uniform_recompute import kept_results
from shardwise.planner.uniform_units import UniformUnits, local_decoder
from tests.support.uniform import GPT, LLAMA, MIXED, plan, pricer

FUSED = replace(LLAMA, fused_loss=True, fused_gate=True)
OP = "recompute=region alternate"


def layer(text, shape=LLAMA):
    made = plan(text)
    return UniformUnits(shape, pricer(made.world_size)).costs(made).layer


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from([512, 2048]), st.sampled_from([1, 2, 3]), st.sampled_from([LLAMA, FUSED]),
    st.sampled_from([1, 2, 4]), st.booleans(),
)  # fmt: skip
def test_bytes_of_a_layer(length, batch, shape, context, compiled):
    """Per token: input h, wq h, wv kv, attention h, w1 f, and w2 h unless it is compiled."""
    text = f"mbs={batch} length={length} cp={context} {OP}"
    kept = layer(f"{text} compiled" if compiled else text, shape).kept_bytes
    h, f, kv = shape.hidden, shape.ffn, shape.kv_heads * shape.head_size
    units = h + h + kv + h + f + (0 if compiled else h)
    assert kept == 2 * units * batch * length / context


@pytest.mark.parametrize(("compiled", "down"), [("", 1), (" compiled", 0)])
def test_bytes_of_a_layer_on_tensor_parallel_ranks(compiled, down):
    """Sums of wo and w2 are cut over the sequence by a reduce-scatter, whose result is kept too;
    what w2 computes before that is whole, in the eager form."""
    t, tokens = 4, 2048
    kept = layer(f"tp={t} sp length={tokens} {OP}{compiled}").kept_bytes
    h, f, kv = LLAMA.hidden, LLAMA.ffn, LLAMA.kv_heads * LLAMA.head_size
    cut = h + h + kv + h + f + h + down * h  # input, wq, wv, attention, w1, scattered wo and w2
    assert kept == 2 * tokens * (cut / t + down * h)


def test_half_of_the_products_are_computed_again():
    """wk, wo and w3: their time is added to that of norms and pointwise operators."""
    whole, some = layer("mbs=4 length=4096 recompute=region"), layer(f"mbs=4 length=4096 {OP}")
    traffic, _ = local_decoder(LLAMA, MIXED, 1, False, "")
    prices = pricer(1)
    sizes = {"B": 4, "S": 4096}
    again = {
        step.operator.name: prices.forward_s(traffic, step, sizes)
        for name in LAYER
        for step in traffic.program.units[UNITS.index(name)].steps
        if hasattr(step, "operator") and step.operator.name in ("qkv", "out", "gate", "up", "down")
    }
    keys = LLAMA.kv_heads / (LLAMA.heads + 2 * LLAMA.kv_heads)
    expected = keys * again["qkv"] + again["out"] + again["gate"]
    assert some.backward_s - whole.backward_s == pytest.approx(expected)
    assert some.forward_s == whole.forward_s and some.kept_bytes < whole.kept_bytes
    assert some.kept_bytes + some.opened_bytes >= layer("mbs=4 length=4096").kept_bytes


def test_pointwise_work_of_attention_is_cut_over_the_context():
    shape = replace(GPT, attention=AttentionKernel.UNFUSED)
    again = {}
    for context in (1, 4):
        text = f"cp={context} length=8192"
        whole, none = layer(f"{text} recompute=region", shape), layer(text, shape)
        again[context] = whole.backward_s - none.backward_s
    assert again[4] == pytest.approx(again[1] / 4, rel=0.05)


@pytest.mark.parametrize(
    ("shape", "shares"),
    [
        (LLAMA, {"qkv": 20 / 24, "out": 0.0, "up": 1.0, "gate": 0.0, "down": 1.0}),
        (GPT, {"qkv": 2 / 3, "out": 0.0, "up": 1.0, "down": 0.0}),
    ],
    ids=["llama", "gpt"],
)
def test_every_second_product_is_kept(shape, shares):
    traffic, _ = local_decoder(shape, MIXED, 1, False, "")
    units = [traffic.program.units[UNITS.index(name)] for name in LAYER]
    found = {
        kept.step.operator.name: kept.share
        for kept in kept_results(units, shape, traffic.mesh, alternate=True)
    }
    assert found.pop("attention") == 1.0
    assert found == pytest.approx(shares)
    plain = kept_results(units, shape, traffic.mesh, alternate=False)
    assert {kept.share for kept in plain} == {1.0}


@pytest.mark.parametrize("text", ["", OP, "recompute=region", "recompute=layer"])
def test_offloaded_bytes_come_back_for_the_backward(text):
    """What waits on the host is not kept, and one layer's of it is there while it is used."""
    here, away = layer(f"length=2048 {text}"), layer(f"length=2048 offload=250 {text}")
    assert away.kept_bytes == pytest.approx(0.75 * here.kept_bytes)
    assert away.kept_bytes + away.opened_bytes == pytest.approx(here.kept_bytes + here.opened_bytes)
    assert away.backward_s == here.backward_s


def test_a_loss_in_one_kernel_holds_logits_and_their_gradient():
    """2 + 2 bytes for each logit, beside what the output layer reads; in float32 it is 4 for the
    log-probabilities and twice 4 for gradients."""
    made = plan("length=2048")
    fused, plain = (UniformUnits(s, pricer(1)).costs(made).head for s in (FUSED, LLAMA))
    logits, table = 2048 * LLAMA.vocabulary, LLAMA.vocabulary * LLAMA.hidden
    assert fused.opened_bytes == 2 * (logits + table + 2048 * LLAMA.hidden)
    assert plain.kept_bytes - fused.kept_bytes == pytest.approx(2 * logits, abs=16)
    assert plain.opened_bytes == pytest.approx(8 * logits, rel=1e-3)
