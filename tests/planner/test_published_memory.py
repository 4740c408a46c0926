"""What optimizers of published stacks allocate, and what an allocator holds, against hand sums."""

import pytest

from shardwise.planner.price_runs import GB, GIB, RunPricer, memory_gb
from shardwise.planner.published_memory import (
    DEEPSPEED_PLAIN,
    DEEPSPEED_ZERO,
    INTERNEVO,
    MEGATRON,
    NO_BUFFERS,
    UNFILLED,
    StepBuffers,
)
from shardwise.planner.published_row import read_row
from shardwise.planner.uniform_price import price_uniform
from tests.planner.test_published_row import FULL
from tests.support.uniform import GPT, plan, pricer


def buffers(**cells):
    return read_row({**FULL, **cells}).buffers


@pytest.mark.parametrize(
    ("kind", "text", "elements", "size", "expected"),
    [
        (DEEPSPEED_ZERO, "dp=4 zero=1", 2e9, 2, 6 * 2e9 / 4 + 2 * 5e8),
        (DEEPSPEED_ZERO, "dp=4 zero=1", 1e8, 2, 6 * 1e8 / 4 + 2 * 1e8),
        (DEEPSPEED_ZERO, "tp=4", 2e9, 2, 6 * 2e9),
        (DEEPSPEED_PLAIN, "dp=4", 2e9, 4, 8 * 2e9 + 4 * 5e8),
        (INTERNEVO, "dp=8 zero=1 shard=4", 2e9, 2, 6 * 2e9 / 4),
        (MEGATRON, "dp=8 zero=1", 2e9, 2, 4 * 2e9 / 8),
        (NO_BUFFERS, "dp=8 zero=1", 2e9, 2, 0),
    ],
)
def test_bytes_of_a_step(kind, text, elements, size, expected):
    assert kind.bytes_per_rank(elements, plan(text), size) == expected


@pytest.mark.parametrize(
    ("framework", "zero", "kind"),
    [
        ("Megatron-DeepSpeed (BigScience fork)", "ZeRO-1", DEEPSPEED_ZERO),
        ("Megatron-DeepSpeed (BigScience fork)", "ZeRO-0", DEEPSPEED_PLAIN),
        ("Megatron-DeepSpeed", "none", DEEPSPEED_PLAIN),
        ("Megatron-DeepSpeed", "not stated", DEEPSPEED_ZERO),
        ("InternEvo", "FSDP", INTERNEVO), ("NeMo / Megatron-Core", "ZeRO-1", MEGATRON),
        ("torchtitan", "FSDP2 full shard", NO_BUFFERS), ("my loop", "ZeRO-1", NO_BUFFERS),
    ],
)  # fmt: skip
def test_whose_optimizer_steps(framework, zero, kind):
    assert buffers(framework=framework, zero_fsdp=zero) == kind


@pytest.mark.parametrize("text", ["dp=4", "pp=2 dp=2 zero=1", "dp=4 zero=3 recompute=layer"])
def test_what_is_live_and_what_is_reserved(text):
    """Activations and buffers of the step are not alive at once; their segments are."""
    made, machine = plan(text), pricer(4)
    plain = price_uniform(GPT, made, machine)
    share = 1 - UNFILLED.value
    assert plain.reserved_bytes == pytest.approx(
        plain.rest_bytes + plain.kept_bytes / share, rel=1e-6
    )
    few, many = (price_uniform(GPT, made, machine, StepBuffers(size)) for size in (1, 500))
    assert few.peak_bytes == plain.peak_bytes and few.reserved_bytes > plain.reserved_bytes
    assert many.peak_bytes > plain.peak_bytes
    step = many.peak_bytes - many.context_bytes - many.rest_bytes
    assert many.reserved_bytes >= many.rest_bytes + step
    assert few.step_s == plain.step_s


def test_kinds_of_memory():
    price = RunPricer().price(FULL).price
    live = price.peak_bytes - price.context_bytes
    held = min(price.reserved_bytes, price.capacity_bytes - price.context_bytes)
    assert memory_gb(price, "allocated, GB") == memory_gb(price, "not stated, GB") == live / GB
    assert memory_gb(price, "reserved, GiB") == held / GIB
    assert memory_gb(price, "nvidia-smi") == (held + price.context_bytes) / GIB
    assert memory_gb(price, "") == price.peak_bytes / GB
    assert live <= held


def test_an_allocator_has_no_more_than_the_device():
    """Between what is live and what caching would take, a run is tight, and shows a full device."""
    pricer_ = RunPricer()
    cells = {
        **FULL, "layers": "16", "tp": "1", "pp": "1", "dp": "1", "n_gpus": "1", "grad_accum": "1",
        "recompute": "none", "schedule": "none", "virtual_stages": "1", "zero_fsdp": "none",
        "hidden": "2048", "heads": "16", "kv_heads": "16", "ffn": "5632",
    }  # fmt: skip
    seen = set()
    for batch in range(1, 40):
        row = {**cells, "micro_batch": str(batch), "global_batch": str(batch)}
        price = pricer_.price(row).price
        shown = memory_gb(price, "nvidia-smi") * GIB
        assert shown <= max(price.capacity_bytes, price.peak_bytes)
        assert price.fits or not price.is_tight
        seen.add((price.fits, price.is_tight))
        if price.is_tight:
            assert shown == pytest.approx(price.capacity_bytes)
            assert "cached" in pricer_.added(row)["price_note"]
    assert seen == {(True, False), (True, True), (False, False)}
