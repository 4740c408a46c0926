"""Prices of uniform plans: limits, what they grow with, how they move when something changes."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.training import TrainingSpec
from shardwise.planner.uniform_price import price_uniform, reserve_bytes
from tests.support.uniform import GPT, LLAMA, plan, pricer

PLANS = (
    "tp=1", "dp=4", "dp=4 zero=1", "dp=4 zero=2", "dp=4 zero=3", "tp=4", "tp=4 sp", "pp=4",
    "pp=2 dp=2 zero=1", "pp=2 chunks=2 schedule=interleaved_1f1b tp=2 sp", "cp=2 tp=2",
    "tp=2 dp=2 zero=3 recompute=layer overlap_gradients", "pp=4 schedule=zb_h1",
)  # fmt: skip
SHAPES = st.sampled_from([GPT, LLAMA])


def price(text, shape=GPT, **options):
    made = plan(text)
    return price_uniform(shape, made, pricer(made.world_size, **options))


def assert_grows(values, *, strictly=True):
    for low, high in pairwise(values):
        assert low < high if strictly else low <= high * (1 + 1e-12)


@pytest.mark.parametrize("shape", [GPT, LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize("options", ["", "zero=1", "zero=3 recompute=layer overlap_gradients"])
def test_one_rank_sends_nothing(shape, options, monkeypatch):
    def nothing(*_):
        raise AssertionError("a collective was priced")

    monkeypatch.setattr("shardwise.ir.hardware.HardwareProfile.collective_s", nothing)
    made = price(f"tp=1 {options}", shape)
    assert made.gradients_s == 0
    assert made.step_s == pytest.approx(made.pipeline_s + made.optimizer_s)


@pytest.mark.parametrize("text", PLANS)
def test_parts_of_a_price_add_up(text):
    made = price(text)
    assert made.step_s == pytest.approx(made.pipeline_s + made.gradients_s + made.optimizer_s)
    total = made.rest_bytes + made.kept_bytes + made.context_bytes
    assert abs(made.peak_bytes - total) <= 2
    assert made.fits == (made.peak_bytes <= made.capacity_bytes)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([p for p in PLANS if p != "tp=1"]), SHAPES)
def test_faster_links_are_faster_down_to_compute_alone(text, shape):
    """Infinite bandwidth and no latency: what one rank computes; a slower network only adds."""
    times = [price(text, shape, faster_links=f).step_s for f in (0.1, 0.5, 1.0, 4.0, 100.0)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shardwise.ir.hardware.HardwareProfile.collective_s", lambda *_: 0.0)
        free = price(text, shape)
    assert_grows([free.step_s, *reversed(times)], strictly=False)
    assert free.gradients_s == 0
    assert times[0] >= times[-1] * (1 - 1e-12)


@pytest.mark.parametrize("text", PLANS)
def test_more_layers_cost_more(text):
    prices = [price(text, replace(GPT, layers=layers)) for layers in (4, 8, 16, 32)]
    for name in ("step_s", "pipeline_s", "optimizer_s", "peak_bytes", "rest_bytes"):
        assert_grows([getattr(made, name) for made in prices])


@pytest.mark.parametrize("text", PLANS)
def test_wider_models_cost_more(text):
    shapes = [replace(GPT, hidden=h, ffn=4 * h) for h in (512, 1024, 2048, 4096)]
    prices = [price(text, shape) for shape in shapes]
    for name in ("step_s", "optimizer_s", "peak_bytes", "rest_bytes"):
        assert_grows([getattr(made, name) for made in prices])


@pytest.mark.parametrize("text", PLANS)
def test_longer_documents_and_more_of_them_cost_more(text):
    for changes in (
        [f"length={length}" for length in (512, 1024, 4096)],
        [f"mbs={count}" for count in (1, 2, 8)],
    ):
        prices = [price(f"{text} {change}") for change in changes]
        assert_grows([made.step_s for made in prices])
        assert_grows([made.kept_bytes for made in prices])
        assert len({made.rest_bytes for made in prices}) == 1


@pytest.mark.parametrize("text", PLANS)
def test_more_micro_batches_cost_time_and_at_most_the_pipeline_s_memory(text):
    prices = [price(f"{text} micro_batches={count}") for count in (8, 16, 64, 256)]
    assert_grows([made.step_s for made in prices])
    assert len({made.peak_bytes for made in prices[1:]}) == 1
    assert len({made.optimizer_s for made in prices}) == 1
    per = [made.pipeline_s / n for made, n in zip(prices, (8, 16, 64, 256), strict=True)]
    assert_grows(per[::-1], strictly=False)


@pytest.mark.parametrize("shape", [GPT, LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize("degrees", ["dp=8", "tp=2 dp=4", "pp=2 dp=4", "dp=4 cp=2"])
def test_zero_cuts_what_rests(shape, degrees):
    rests = [price(f"{degrees} zero={stage}", shape).rest_bytes for stage in range(4)]
    assert_grows(rests[2::-1])
    copies = 2 * rests[0]  # gathered weights of ZeRO-3: of two layers or the larger end
    assert rests[3] <= rests[2] + copies


@settings(max_examples=10, deadline=None)
@given(st.integers(6, 40), st.sampled_from(["dp=8", "tp=2 dp=4"]))
def test_zero_3_rests_less_than_zero_2_in_a_deep_model(layers, degrees):
    """Beyond the two layers that it has gathered, it holds no whole weights."""
    shape = replace(GPT, layers=layers, vocabulary=1024)
    two, three = (price(f"{degrees} zero={n}", shape).rest_bytes for n in (2, 3))
    assert three < two


def test_rest_bytes_of_a_hand_count():
    """AdamW in mixed precision: 12 bytes of masters and states, 4 of gradients, 2 of copies a
    parameter (Rajbhandari et al. 2020, section 3, with gradients in float32)."""
    count = GPT.parameters
    assert price("dp=8").rest_bytes == 18 * count
    assert price("dp=8 zero=1").rest_bytes == int(12 * count / 8 + 6 * count)
    assert price("dp=8 zero=2").rest_bytes == int(16 * count / 8 + 2 * count)
    single = TrainingSpec()
    assert price("dp=8", training=single, gpu="h100-sxm").rest_bytes == 16 * count


@pytest.mark.parametrize("tensor", ["tp=1", "tp=4", "tp=4 sp"])
@pytest.mark.parametrize("shape", [GPT, LLAMA], ids=["gpt", "llama"])
def test_recomputation_never_keeps_more_and_never_saves_time(shape, tensor):
    prices = [
        price(f"{tensor} length=4096 recompute={kind}", shape)
        for kind in ("layer", "attention", "none")
    ]
    assert_grows([made.kept_bytes for made in prices], strictly=False)
    assert_grows([made.step_s for made in prices[::-1]], strictly=False)


@pytest.mark.parametrize("shape", [GPT, LLAMA], ids=["gpt", "llama"])
def test_selective_recomputation_lies_between_none_and_all(shape):
    """Of pointwise operators (torchtitan's selective op)."""
    none, region, layer = (
        price(f"mbs=2 recompute={kind}", shape) for kind in ("none", "region", "layer")
    )
    assert none.kept_bytes >= region.kept_bytes >= layer.kept_bytes
    assert none.step_s <= region.step_s <= layer.step_s


GPUS = ("v100-sxm2-32", "a100-sxm-80", "h100-sxm", "b200")
HALF = TrainingSpec(compute_dtype="float16")


@pytest.mark.parametrize("text", ["tp=1", "dp=8 zero=1", "tp=8 sp", "pp=4 tp=2"])
def test_a_faster_gpu_is_faster_and_holds_the_same(text):
    """Peaks and bandwidths rise from one to the next, launch floor and plan stay."""
    prices = [price(f"{text} mbs=4", gpu=gpu, training=HALF) for gpu in GPUS]
    assert_grows([made.step_s for made in prices[::-1]])
    assert len({made.kept_bytes for made in prices}) == 1
    assert len({made.rest_bytes for made in prices}) == 1


def test_an_added_layer_adds_its_own_cost():
    """From 8 to 9 layers as from 9 to 10: prices are linear in layers without a pipeline."""
    prices = [price("dp=8 zero=1", replace(GPT, layers=n)) for n in (8, 9, 10)]
    for name in ("pipeline_s", "rest_bytes", "kept_bytes"):
        eight, nine, ten = (getattr(made, name) for made in prices)
        assert ten - nine == pytest.approx(nine - eight, rel=1e-6, abs=4)


@pytest.mark.parametrize("zero", [0, 1])
def test_overlap_hides_gradients(zero):
    shown = price(f"dp=8 zero={zero}")
    hidden = price(f"dp=8 zero={zero} overlap_gradients")
    assert 0 <= hidden.gradients_s < shown.gradients_s
    assert hidden.pipeline_s == shown.pipeline_s


def test_a_gradient_s_reduction_is_one_collective_of_all():
    made, one = plan("dp=8"), pricer(8)
    expected = one.hardware.collective_s("all_reduce", one.cluster.span(1, 8), GPT.parameters * 4)
    assert price_uniform(GPT, made, one).gradients_s == pytest.approx(expected)


def test_data_parallel_ranks_between_nodes_pay_the_slower_network():
    assert price("dp=8", per_node=4).gradients_s > price("dp=8").gradients_s


@pytest.mark.parametrize("degrees", ["dp=16", "tp=2 dp=8"])
def test_smaller_shard_groups_hold_more(degrees):
    """ZeRO within groups of ranks: more bytes at rest for less to gather."""
    rests = [price(f"{degrees} zero=1 shard={n}").rest_bytes for n in (8, 4, 2)]
    assert_grows(rests)
    assert price(f"{degrees} zero=1 shard=8").rest_bytes >= price(f"{degrees} zero=1").rest_bytes


def test_process_groups_are_paid_for_each_degree():
    one = pricer(8)
    context, group = one.hardware.context_bytes.value, one.hardware.group_bytes.value
    for text, groups in (("tp=1", 0), ("dp=8", 1), ("tp=2 dp=2 pp=2", 3), ("cp=2 tp=4", 2)):
        assert reserve_bytes(one.hardware, plan(text)) == int(context + groups * group)


@pytest.mark.parametrize(
    ("text", "names"),
    [("dp=4", "4 ranks, machine 8"), ("pp=8 chunks=2 schedule=interleaved_1f1b", "lower pp")],
)
def test_other_worlds_and_too_many_parts_are_refused(text, names):
    with pytest.raises(InvalidValueError, match=names):
        price_uniform(replace(GPT, layers=4), plan(text), pricer(8))


def test_tied_embeddings_rest_once_more_on_the_last_stage():
    shape = replace(GPT, vocabulary=200_000)
    tied = price("pp=4", shape).rest_bytes
    layers = 18 * 2 * GPT.layer_parameters
    assert tied >= layers + 18 * 200_000 * 1024


@pytest.mark.parametrize("tensor", [2, 8])
def test_a_vocabulary_that_the_ranks_do_not_divide_is_padded(tensor):
    """Else every rank would hold and compute the whole output layer."""
    odd, even = (price(f"tp={tensor}", replace(GPT, vocabulary=size)) for size in (50257, 50264))
    assert odd == (even if tensor == 8 else odd)
    assert odd.step_s == pytest.approx(even.step_s, rel=1e-3)
    assert odd.peak_bytes == pytest.approx(even.peak_bytes, rel=1e-3)


def test_gradients_of_shard_groups_are_three_messages():
    """ZeRO-1 over 4 of 16 ranks: scattered in the group, their parts summed across groups, weights
    gathered in the group."""
    made, one = plan("dp=16 zero=1 shard=4"), pricer(16)
    group, across = one.cluster.span(1, 4), one.cluster.span(4, 4)
    whole, price_of = GPT.parameters * 4, one.hardware.collective_s
    expected = price_of("reduce_scatter", group, whole) + price_of("all_reduce", across, whole / 4)
    expected += price_of("all_gather", group, GPT.parameters * 2)
    assert price_uniform(GPT, made, one).gradients_s == pytest.approx(expected)


@pytest.mark.parametrize(("text", "cut"), [("pp=2 tp=2", 1), ("pp=2 tp=2 sp", 2)])
def test_messages_between_pipeline_devices_are_a_rank_s_part_of_the_sequence(
    text, cut, monkeypatch
):
    sent = set()

    def collective_s(_, kind, span, size):
        if kind == "send_recv":
            sent.add(size)
        return 0.0

    monkeypatch.setattr("shardwise.ir.hardware.HardwareProfile.collective_s", collective_s)
    price(f"{text} mbs=3")
    assert sent == {2 * 3 * 2048 * GPT.hidden // cut}


@pytest.mark.parametrize(("text", "cut"), [("tp=1", 1), ("dp=4 zero=1", 1), ("tp=2 pp=2", 4)])
@pytest.mark.parametrize("count", [1, 8])
def test_weights_are_cast_to_float8_once_a_step(text, cut, count):
    """Read in 2 bytes and written twice in 1, of the layers of the busiest device, however many
    micro-batches there are."""
    made = plan(text, micro_batches=count)
    one = pricer(made.world_size, "h100-sxm")
    low = replace(one, linear_dtype="float8_e4m3fn")
    plain, cast = price_uniform(GPT, made, one), price_uniform(GPT, made, low)
    elements = GPT.layers * GPT.layer_parameters / cut
    expected = one.hardware.memory_s(4 * elements)
    assert cast.optimizer_s - plain.optimizer_s == pytest.approx(expected)


def test_gathered_weights_are_cast_every_time():
    made = plan("dp=4 zero=3", micro_batches=1)
    low = replace(pricer(4, "h100-sxm"), linear_dtype="float8_e4m3fn")
    one, two = (price_uniform(GPT, replace(made, micro_batches=count), low) for count in (1, 2))
    assert one.optimizer_s == price_uniform(GPT, made, pricer(4, "h100-sxm")).optimizer_s
    casts = low.hardware.memory_s(4 * GPT.layers * GPT.layer_parameters)
    assert two.pipeline_s - 2 * one.pipeline_s >= -1e-12
    assert one.pipeline_s > casts
