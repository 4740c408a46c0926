"""Operator prices on a GPU profile against formulas; launch floor, float8, attention's backward."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.ir.decoder import AttentionKernel
from shardwise.ir.decoder_graph import UNITS
from shardwise.ir.dtype import DTYPE_BYTES
from shardwise.ir.program import Call
from shardwise.planner.operator_time import TILES, OperatorTime, tile_rounds
from shardwise.planner.uniform_units import local_decoder
from tests.support.uniform import GPT, LLAMA, MIXED, korthikanti, pricer

SIZES = {"B": 2, "S": 2048}
TOKENS = SIZES["B"] * SIZES["S"]


def found(shape, name, tensor=1):
    """(call, which operands need a gradient) of an operator of a decoder."""
    link = pricer(8).hardware.links[0].name if tensor > 1 else ""
    traffic, _ = local_decoder(shape, MIXED, tensor, False, link)
    assert len(traffic.program.units) == len(UNITS)
    for step in traffic.program.steps():
        if isinstance(step, Call) and step.operator.name == name:
            return step, traffic.needs(step), traffic.mesh
    raise AssertionError(name)


def seconds(
    shape, name, sizes=SIZES, *, floor=False, tensor=1, linear_dtype=None, gpu="h100-sxm",
    blocking=False,
):  # fmt: skip
    one = pricer(8, gpu, floor=floor)
    timed = OperatorTime(one.hardware, one.software, 1, linear_dtype, blocking)
    call, needs, mesh = found(shape, name, tensor)
    return timed.seconds(call, needs, sizes, mesh)


def share(gpu="h100-sxm"):
    return pricer(8, gpu).software.efficiency.value


@pytest.mark.parametrize(
    ("kernel", "key"), [("flash", "attention"), ("flash3", "attention.flash3")]
)
def test_attention_goes_by_the_curves_of_its_kernel_both_ways(kernel, key):
    shape = replace(GPT, attention=AttentionKernel(kernel))
    sizes = {"B": 8, "S": 8192}
    forward, backward = seconds(shape, "attention", sizes)
    hardware, heads = pricer(8, "h100-sxm").hardware, shape.heads * sizes["B"]
    flops = 2 * heads * sizes["S"] ** 2 * shape.head_size
    assert forward == pytest.approx(hardware.compute_s(key, "bfloat16", flops) / share(), rel=1e-3)
    back_s = hardware.compute_s(f"{key}.backward", "bfloat16", 2.5 * flops) / share()
    assert backward == pytest.approx(back_s, rel=1e-3)


def bounds(flops, moved, rounds=1.0):
    """Seconds of a product whose compute and traffic overlap wholly, and not at all."""
    hardware = pricer(8, "h100-sxm").hardware
    compute, traffic = hardware.compute_s("matmul", "bfloat16", flops), hardware.memory_s(moved)
    return max(compute, traffic) / share() * 0.999, (compute * rounds + traffic) / share() * 1.001


@pytest.mark.parametrize(("name", "inner", "outer"), [("up", 1024, 4096), ("down", 4096, 1024)])
def test_a_product_is_its_work_and_its_traffic_once_forward_and_twice_backward(name, inner, outer):
    flops = 2 * TOKENS * inner * outer
    moved = 2 * (TOKENS * (inner + outer) + inner * outer + outer)
    forward, backward = seconds(GPT, name)
    least, most = bounds(flops, moved, tile_rounds(TOKENS, outer, 132))
    assert least <= forward <= most
    rounds = (tile_rounds(TOKENS, inner, 132) + tile_rounds(outer, inner, 132)) / 2
    least, most = bounds(flops, moved, rounds)
    assert 2 * least <= backward <= 2 * most


@given(st.integers(1, 20_000), st.integers(1, 20_000), st.integers(1, 160))
def test_tiles_fill_rounds_or_wait_for_the_last(rows, columns, processors):
    """Against counting: rounds of the best tile, in units of rounds that are full."""
    ratios = []
    for height, width, cost in TILES:
        tiles = len(range(0, rows, height)) * len(range(0, columns, width))
        ratios.append((tiles, cost * len(range(0, tiles, processors)) * processors / tiles))
    if min(tiles for tiles, _ in ratios) >= processors:
        expected = min(ratio for _, ratio in ratios)
        assert tile_rounds(rows, columns, processors) == pytest.approx(expected)
    else:
        assert tile_rounds(rows, columns, processors) == 1
    assert 1 <= tile_rounds(rows, columns, processors) < 2


def test_a_whole_number_of_rounds_loses_nothing():
    assert tile_rounds(256 * 12, 128 * 9, 108) == 1
    assert tile_rounds(256 * 12, 128 * 10, 108) == pytest.approx(1.05 * 3 * 108 / 240)


def test_ranks_share_a_product():
    """On 8 ranks its work and its traffic are at least an eighth, its time under the whole."""
    forward, backward = seconds(GPT, "up", tensor=8)
    whole, _ = seconds(GPT, "up")
    assert whole / 8 * 0.999 <= forward < whole and backward < seconds(GPT, "up")[1]


def test_attention_has_five_products_backward_for_two_forward():
    """Dao et al. 2022, causal: half of 4 B S^2 h forward, 2.5 times that backward."""
    hardware = pricer(8, "h100-sxm").hardware
    sizes = {"B": 1, "S": 32768}
    flops = 2 * sizes["S"] ** 2 * LLAMA.hidden
    forward, backward = seconds(LLAMA, "attention", sizes)
    price = hardware.compute_s
    assert forward == pytest.approx(price("attention", "bfloat16", flops) / share())
    expected = price("attention.backward", "bfloat16", 2.5 * flops) / share()
    assert backward == pytest.approx(expected)


def test_unfused_attention_never_costs_less_than_fused():
    fused = seconds(GPT, "attention")
    shape = korthikanti(1024, 16)
    parts = [seconds(shape, name) for name in ("scores", "probabilities", "attention")]
    assert sum(forward for forward, _ in parts) > fused[0]
    assert sum(backward for _, backward in parts) > fused[1]


@pytest.mark.parametrize("name", ["norm1", "act", "residual1", "up", "attention"])
def test_no_call_is_under_the_launch_floor(name):
    floor = pricer(8).software.launch_floor_s.value
    tiny = {"B": 1, "S": 1}
    forward, backward = seconds(GPT, name, tiny, floor=True, gpu="a100-sxm-80")
    assert floor <= forward < 3 * floor and backward >= floor


@pytest.mark.parametrize("name", ["norm1", "act", "residual1"])
@pytest.mark.parametrize("sizes", [SIZES, {"B": 1, "S": 1}])
def test_a_host_that_waits_hides_no_launch(name, sizes):
    """Roofline and launch one after the other, where otherwise the larger of the two counts."""
    floor = pricer(8).software.launch_floor_s.value
    bare = seconds(GPT, name, sizes)
    waited = seconds(GPT, name, sizes, floor=True, blocking=True)
    assert waited == tuple(pytest.approx(one + floor) for one in bare)
    beside = seconds(GPT, name, sizes, floor=True)
    assert all(late > early for late, early in zip(waited, beside, strict=True))


@pytest.mark.parametrize("tensor", [1, 8])
@pytest.mark.parametrize("heads", [96, 120, 64, 128])
def test_batched_products_with_broken_rows_run_on_the_plain_cores(heads, tensor):
    """Rows of one head in bytes: 14400 over 96 heads is 300, over 120 heads 240; 13824 over 64
    heads is 432, over 128 heads 216."""
    hidden = 14400 if heads in (96, 120) else 13824
    shape, rows = korthikanti(hidden, heads), 2 * (hidden // heads)
    hardware, sizes = pricer(8, "a100-sxm-80").hardware, {"B": 4, "S": 2048}
    flops = 2 * sizes["B"] * sizes["S"] ** 2 * hidden / tensor
    moved = 2 * sizes["B"] * sizes["S"] * (heads * sizes["S"] + 2 * hidden) / tensor
    dtype = "float32" if rows % 16 else "bfloat16"
    assert (rows % 16 == 0) == (heads in (120, 64))
    each = (hardware.compute_s("matmul", dtype, flops) + hardware.memory_s(moved)) / share()
    for name in ("scores", "attention"):
        forward, backward = seconds(shape, name, sizes, tensor=tensor, gpu="a100-sxm-80")
        assert forward == pytest.approx(each) and backward == pytest.approx(2 * each)


def test_single_products_keep_their_tensor_cores():
    """An output layer of 50257 rows, which no tile divides."""
    hardware = pricer(8, "a100-sxm-80").hardware
    flops = 2 * TOKENS * 1024 * 50257
    moved = 2 * (TOKENS * (1024 + 50257) + 1024 * 50257)
    forward, _ = seconds(replace(GPT, vocabulary=50257), "logits", gpu="a100-sxm-80")
    compute = hardware.compute_s("matmul", "bfloat16", flops) * tile_rounds(TOKENS, 50257, 108)
    assert forward == pytest.approx((compute + hardware.memory_s(moved)) / share())


@pytest.mark.parametrize("name", ["qkv_heads", "rows", "targets"])
def test_views_are_free_on_a_gpu(name):
    assert seconds(GPT, name, floor=True) == (0.0, 0.0)


@pytest.mark.parametrize(("name", "passes"), [("residual1", 3), ("act", 2)])
def test_pointwise_operators_move_their_bytes(name, passes):
    hardware = pricer(8, "h100-sxm").hardware
    width = {"residual1": 1024, "act": 4096}[name]
    key = {"residual1": "memory.add", "act": "memory.gelu"}[name]
    moved = passes * TOKENS * width * DTYPE_BYTES["bfloat16"]
    expected = hardware.memory_s(moved, key) / share()
    assert seconds(GPT, name)[0] == pytest.approx(expected)


def test_float8_is_faster_for_large_products_and_pays_for_its_casts():
    sizes = {"B": 8, "S": 8192}
    shape = korthikanti(12288, 96)
    plain = seconds(shape, "up", sizes)
    low = seconds(shape, "up", sizes, linear_dtype="float8_e4m3fn")
    assert low[0] < plain[0] and low[1] < plain[1]
    flops = 2 * sizes["B"] * sizes["S"] * 12288 * 4 * 12288
    hardware, rows = pricer(8, "h100-sxm").hardware, sizes["B"] * sizes["S"]
    compute = hardware.compute_s("matmul", "float8_e4m3fn", flops)
    compute *= tile_rounds(rows, 4 * 12288, 132)
    moved = 2 * (5 * rows * 12288 + 4 * 12288 * 12288 + 4 * 12288)
    moved = hardware.memory_s(moved * 2 / 3)  # 1, 1 and 2 bytes in three products, not 2, 2 and 2
    cast = hardware.memory_s(4 * rows * 12288)
    assert low[0] == pytest.approx((compute + moved + cast) / share())


def test_float8_is_for_products_with_weights_of_layers_alone():
    """The output layer, attention and what memory bounds keep the compute dtype."""
    for name in ("logits", "norm1", "act", "attention"):
        assert seconds(GPT, name) == seconds(GPT, name, linear_dtype="float8_e4m3fn")
    assert seconds(GPT, "up") != seconds(GPT, "up", linear_dtype="float8_e4m3fn")
