"""UniformPlan: its text parses back, and what it may not be."""

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.schedule import ScheduleKind
from shardwise.ir.strategy import Recompute
from shardwise.planner.uniform_plan import UniformPlan

DEGREES = st.integers(1, 64)
TAKES_CHUNKS = (ScheduleKind.INTERLEAVED, ScheduleKind.ZB_V)


@st.composite
def plans(draw):
    schedule = draw(st.sampled_from(ScheduleKind))
    data, context = draw(DEGREES), draw(DEGREES)
    divisors = [n for n in range(1, data * context + 1) if data * context % n == 0]
    recompute = draw(st.sampled_from(Recompute))
    flags = {f.name: draw(st.booleans()) for f in fields(UniformPlan) if type(f.default) is bool}
    flags["alternate"] &= recompute is Recompute.REGION
    return UniformPlan(
        draw(DEGREES), draw(DEGREES), data, context, draw(DEGREES), draw(DEGREES),
        draw(st.integers(1, 2**20)), schedule,
        draw(DEGREES) if schedule in TAKES_CHUNKS else 1,
        draw(st.integers(0, 3)), draw(st.sampled_from([0, *divisors])),
        recompute=recompute, offload=draw(st.integers(0, 1000)), **flags,
    )  # fmt: skip


@given(plans())
def test_text_parses_back(plan):
    assert UniformPlan.parse(str(plan)) == plan


@given(plans())
def test_counts(plan):
    assert plan.world_size == plan.tensor * plan.pipeline * plan.data * plan.context
    assert plan.tokens_per_step % plan.sequence_length == 0
    documents = plan.tokens_per_step // plan.sequence_length
    assert documents == plan.data * plan.micro_batch * plan.micro_batches
    assert plan.replicas % plan.shard_size == 0
    assert (plan.shard_size == 1) >= (plan.zero == 0)


def test_the_text_of_a_plan():
    text = "tp=8 pp=4 dp=2 mbs=1 micro_batches=32 length=4096 zero=1 sp recompute=layer"
    plan = UniformPlan.parse(text)
    assert plan == UniformPlan(
        tensor=8, pipeline=4, data=2, micro_batches=32, sequence_length=4096, zero=1,
        sequence_parallel=True, recompute=Recompute.LAYER,
    )  # fmt: skip
    assert plan == UniformPlan.parse(
        text.replace("tp", "tensor").replace("sp", "sequence_parallel")
    )
    assert str(UniformPlan()) == "tp=1" and UniformPlan.parse("tp=1") == UniformPlan()


@pytest.mark.parametrize(
    "text",
    [
        "tp", "tp=", "tp=8,pp=4", "tp=8 tp=8", "tp=8 tensor=8", "xp=2", "tp=-1", "tp=1.5",
        "schedule=fast", "recompute=some", "tp=eight", "TP=8", "tp =8",
    ],
)  # fmt: skip
def test_other_text_is_refused(text):
    with pytest.raises(ParseError, match="uniform plan") as error:
        UniformPlan.parse(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", [None, 8, b"tp=8", ["tp=8"]])
def test_what_is_no_text_is_refused(value):
    with pytest.raises(ParseError):
        UniformPlan.parse(value)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("tp=0", "tensor"), ("mbs=0", "micro_batch"), ("zero=4", "zero=4"),
        ("dp=4 zero=1 shard=3", "shard=3"), ("pp=2 chunks=2", "chunks=2"),
        ("chunks=2 schedule=zb_h1", "chunks=2"),
    ],
)  # fmt: skip
def test_rules(text, names):
    with pytest.raises(InvalidValueError, match=names):
        UniformPlan.parse(text)


@pytest.mark.parametrize("name", [f.name for f in fields(UniformPlan) if type(f.default) is int])
@pytest.mark.parametrize("value", [-1, 1.0, True, "1", None])
def test_degrees_are_whole_numbers(name, value):
    with pytest.raises(InvalidValueError, match=name):
        UniformPlan(**{name: value})


@pytest.mark.parametrize("value", ["yes=1", "sequence_parallel=no", "overlap_gradients=0", "sp=1"])
def test_a_flag_has_no_value(value):
    """sp=0 must not switch it on."""
    with pytest.raises(ParseError):
        UniformPlan.parse(value)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("recompute=layer alternate", "recompute=region"), ("alternate", "recompute=region"),
        ("offload=1001", "thousandths"),
    ],
)  # fmt: skip
def test_settings_of_recomputation_that_mean_nothing(text, match):
    with pytest.raises(InvalidValueError, match=match):
        UniformPlan.parse(text)


@pytest.mark.parametrize(
    ("text", "teaches"),
    [
        ("microbatches=8", "micro_batches, offload, pp,.*with =value, or sequence_parallel"),
        ("tp=1 tp=2", "each at most once"),
        ("overlap_gradients=no", "overlap_gradients stands alone"),
        ("tp=x", "tp takes a whole number"),
        ("schedule=foo", "schedule takes gpipe, 1f1b, interleaved_1f1b"),
        ("recompute", "recompute takes none, attention, region, layer"),
    ],
)
def test_a_bad_word_is_told_what_it_takes(text, teaches):
    with pytest.raises(ParseError, match=teaches):
        UniformPlan.parse(text)
