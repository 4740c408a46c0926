"""The text of a plan for people: one golden text, and what holds for every plan."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from shardwise.ir.plan import Plan
from shardwise.ir.plan_file import load
from shardwise.ir.plan_text import COLUMNS, render, seconds, size
from tests.support.plans import GOLDEN, legal_plans

PLANS = {path.stem: load(path) for path in GOLDEN}

FOUR_RANKS = """\
model      llama-tiny, 214,592 parameters, 6 units in 1 stage (0:6)
mesh       x0=2@loopback data=2@loopback, 4 ranks
cluster    local-4 cpu-gloo node:4@loopback, 2 GB per rank
training   adamw, float32 weights, float32 compute, 262,144 tokens per step
step       2.318 s expected (optimal_within_gap)
bound      2.311 s, under which no plan of the menu 'executable' (41 strategies) can get: gap 0.30%
covers     Within 0.31 % of the best plan of this price model and a menu of 41 strategies.
           Illustrative numbers, written by hand to show the form of a plan file: nothing was
           searched or measured, and the digests stand for no real profile.
switching  free between buckets; the shared parameters cost 0.60% over a plan of its own for each
           bucket
documents  longer than the last bucket: error
plan hash  cc924936eea9a36f85a38e3a2c5e4cb7471de6e8f7ff4fef34e74813a2173d9d

bucket                documents  padded to   slot time     peak          units    strategy
--------------------  ---------  ----------  ------------  ------------  -------  ------------------
S(0,1024]             4 x 2      256         23.05 ms      263.5 MB      0:1      embed.dp
                                 1024        66.1 ms       304.1 MB      1:5      layer.dp
                                                                         5:6      head.dp
S(1024,8192]          2 x 1      2048        85.94 ms      291.9 MB      0:1      embed.ts
                                 4096        166.4 ms      323.9 MB      1:5      layer.ts
                                 8192        412.9 ms      387.8 MB      5:6      head.ts

strategy               computes as
---------------------  ---------------------------------------------------------------------------
embed.dp               data x0=batch data=batch
embed.ts               tensor_sequence x0=tensor data=batch
head.dp                data x0=batch data=batch
head.ts                tensor_sequence x0=tensor data=batch
layer.dp               data x0=batch data=batch
layer.ts               tensor_sequence x0=tensor data=batch recompute=layer

lifetime     master             accumulator  parameters
-----------  -----------------  -----------  -------------------------------------------------------
step         R                  R            model.layers.{0:4}.input_layernorm.weight
                                             model.layers.{0:4}.post_attention_layernorm.weight
                                             model.norm.weight
step         x0:S(0) data:S(0)  as master    lm_head.weight
                                             model.embed_tokens.weight
use          x0:S(0) data:S(0)  as master    model.layers.{0:4}.mlp.gate_proj.weight
                                             model.layers.{0:4}.mlp.up_proj.weight
                                             model.layers.{0:4}.self_attn.k_proj.weight
                                             model.layers.{0:4}.self_attn.q_proj.weight
                                             model.layers.{0:4}.self_attn.v_proj.weight
use          x0:S(1) data:S(0)  as master    model.layers.{0:4}.mlp.down_proj.weight
                                             model.layers.{0:4}.self_attn.o_proj.weight

baseline                  step          of plan   peak          note
------------------------  ------------  --------  ------------  ------------------------------------
DDP                       2.871 s       1.24 x    921 MB
ZeRO-3                    3.402 s       1.47 x    640 MB
tensor parallel 4         4.117 s       1.78 x    512 MB
ring 4                    -             -         -             not runnable yet: ring attention is
                                                                not in the executable menu
"""


def test_the_text_of_the_plan_for_four_ranks() -> None:
    assert render(PLANS["four-ranks"]) == FOUR_RANKS


def check(plan: Plan) -> None:
    text = render(plan)
    lines = text.split("\n")
    assert lines[-1] == "" and lines[-2] != ""
    assert max(map(len, lines)) <= COLUMNS
    assert all(line == line.rstrip() for line in lines)
    assert plan.digest() in text
    for name, _ in plan.strategies:
        assert name in text
    for bucket in plan.buckets:
        assert f"{bucket.batch_degree} x {bucket.seats}" in text
        for shape in bucket.padded:
            assert seconds(bucket.price_of(bucket.time, shape)) in text
            assert size(bucket.price_of(bucket.peak, shape)) in text
    units = [line for line in lines if line.rstrip().endswith(plan.strategies[0][0])]
    assert units


@pytest.mark.parametrize("name", PLANS)
def test_golden_plans_say_all_there_is_to_say(name: str) -> None:
    plan = PLANS[name]
    check(plan)
    text = render(plan)
    for part in (
        plan.model.name,
        str(plan.mesh),
        str(plan.priced_for.cluster),
        plan.training.optimizer,
        plan.status,
        plan.long_documents,
        f"{plan.gap:.2%}",
        *(str(bucket.bucket) for bucket in plan.buckets),
        *(baseline.name for baseline in plan.baselines),
        *(choice.pattern for choice in plan.parameters),
    ):
        assert part in text, part
    flat = " ".join(text.split())
    assert plan.covers in flat


@settings(max_examples=40)
@given(legal_plans())
def test_random_plans_stay_in_their_columns(plan: Plan) -> None:
    check(plan)


def test_long_words_are_wrapped() -> None:
    plan = PLANS["four-ranks"]
    wide = replace(plan, covers="x" * 400, model=replace(plan.model, name="m" * 300))
    assert max(map(len, render(wide).split("\n"))) <= COLUMNS


def test_without_baselines_there_is_no_table_of_them() -> None:
    assert "baseline" not in render(replace(PLANS["one-rank"], baselines=()))


@pytest.mark.parametrize(
    ("time_s", "text"),
    [(None, "-"), (5.2364, "5.236 s"), (0.248, "248 ms"), (1e-7, "0.0001 ms"), (0.0, "0 ms")],
)
def test_seconds(time_s: float | None, text: str) -> None:
    assert seconds(time_s) == text


@pytest.mark.parametrize(
    ("count_bytes", "text"),
    [(None, "-"), (7.6e10, "76 GB"), (9.21e8, "921 MB"), (1000.0, "1 kB"), (12.0, "12 B")],
)
def test_sizes(count_bytes: float | None, text: str) -> None:
    assert size(count_bytes) == text
