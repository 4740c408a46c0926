"""Hardware profiles: rooflines, collectives, memory, text."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.cluster import Cluster, Level
from shardwise.ir.curve import Constant, Curve
from shardwise.ir.errors import InvalidValueError, MismatchError, ParseError, UnsupportedError
from shardwise.ir.hardware import WORK, HardwareProfile
from shardwise.ir.link import CollectiveCurve, LinkClass
from shardwise.ir.span import Span


def figure(value, unit):
    return Constant(value, unit, "made up")


def share(unit, *points):
    x, y = zip(*points, strict=True)
    return Curve(x, y, unit, "ratio", "made up")


def flat_link(name, bandwidth):
    curve = Curve((1,), (bandwidth,), "bytes", "bytes/s", "made up")
    kinds = ("all_gather", "all_reduce", "send_recv")
    collectives = tuple(CollectiveCurve(kind, curve) for kind in kinds)
    zero, one = figure(0, "ratio"), figure(1, "ratio")
    return LinkClass(name, figure(0, "s"), zero, one, collectives)


FIELDS = {
    "name": "gpu",
    "device": "cuda",
    "memory_bytes": figure(1000, "bytes"),
    "memory_bandwidth": figure(100, "bytes/s"),
    "context_bytes": figure(10, "bytes"),
    "group_bytes": figure(1, "bytes"),
    "peak_flops_per_s": (
        ("float32", figure(1000, "FLOP/s")),
        ("bfloat16", figure(2000, "FLOP/s")),
    ),
    "efficiency": (
        ("matmul", share("FLOP", (10, 0.1), (1000, 0.5))),
        ("matmul.bfloat16", share("FLOP", (10, 0.2))),
        ("attention", share("FLOP", (1, 0.25))),
        ("memory", share("bytes", (1, 0.5))),
        ("memory.softmax", share("bytes", (1, 0.1))),
    ),
    "links": (flat_link("nvlink", 100.0), flat_link("ib", 10.0)),
}
PROFILE = HardwareProfile(**FIELDS)


def changed(**fields):
    return HardwareProfile(**(FIELDS | fields))


def test_compute_is_flop_over_peak_and_efficiency() -> None:
    assert math.isclose(PROFILE.compute_s("matmul", "float32", 1000), 1000 / (1000 * 0.5))
    assert math.isclose(PROFILE.compute_s("matmul", "float32", 1), 1 / (1000 * 0.1))
    assert math.isclose(PROFILE.compute_s("matmul", "bfloat16", 1000), 1000 / (2000 * 0.2))
    assert math.isclose(PROFILE.compute_s("attention", "bfloat16", 8), 8 / (2000 * 0.25))


def test_memory_is_bytes_over_bandwidth_and_efficiency() -> None:
    assert math.isclose(PROFILE.memory_s(100), 2.0)
    assert math.isclose(PROFILE.memory_s(100, "memory.softmax"), 10.0)
    assert math.isclose(PROFILE.memory_s(100, "memory.gelu"), 2.0)


def test_the_roofline_is_the_larger_side() -> None:
    assert math.isclose(PROFILE.roofline_s("matmul", "float32", 1000, 1), 2.0)
    assert math.isclose(PROFILE.roofline_s("matmul", "float32", 1000, 1000), 20.0)
    assert math.isclose(PROFILE.roofline_s("memory.softmax", "float32", 10**9, 100), 10.0)


def test_nothing_to_do_costs_nothing() -> None:
    assert PROFILE.roofline_s("matmul", "float32", 0, 0) == 0
    assert PROFILE.roofline_s("memory", "float32", 0, 0) == 0
    assert PROFILE.collective_s("all_reduce", Span("", 1), 100) == 0


def test_a_key_falls_back_to_its_beginning() -> None:
    assert PROFILE.curve("matmul.float32") == PROFILE.curve("matmul")
    assert PROFILE.curve("memory.softmax.wide") == PROFILE.curve("memory.softmax")
    with pytest.raises(InvalidValueError, match="matmul, attention, memory"):
        PROFILE.curve("conv.float32")


def test_the_two_sides_are_not_confused() -> None:
    with pytest.raises(InvalidValueError, match="memory_s"):
        PROFILE.compute_s("memory", "float32", 1)
    with pytest.raises(InvalidValueError, match="compute_s"):
        PROFILE.memory_s(1, "matmul")


def test_a_dtype_without_a_peak_is_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="float32, bfloat16"):
        PROFILE.peak("float16")
    with pytest.raises(InvalidValueError, match="not known"):
        PROFILE.peak("float99")


def test_a_collective_costs_its_slowest_part() -> None:
    """16 ranks, 8 to a node: 8 NICs of 10 bytes/s, and links of 100 bytes/s inside."""
    node = Span("nvlink", 8)
    both = PROFILE.collective_s("all_gather", Span("ib", 16, node), 1600)
    assert math.isclose(both, max(1600 * 15 / 16 / 80, 1600 * 7 / 8 / 100))
    alone = PROFILE.collective_s("all_gather", Span("ib", 2), 1600)
    assert math.isclose(alone, 1600 / 2 / 10)
    slow_inside = changed(links=(flat_link("nvlink", 1.0), flat_link("ib", 10.0)))
    inside = slow_inside.collective_s("all_gather", Span("ib", 16, node), 1600)
    assert math.isclose(inside, 1600 * 7 / 8 / 1)
    assert math.isclose(slow_inside.collective_s("send_recv", Span("ib", 16, node), 100), 10.0)


def test_links_are_found_by_name() -> None:
    assert PROFILE.link("ib").name == "ib"
    with pytest.raises(MismatchError, match="it has nvlink, ib"):
        PROFILE.link("pcie")


def test_memory_of_a_rank() -> None:
    cluster = Cluster("one", "gpu", (Level("node", 2, "nvlink"),))
    assert PROFILE.rank_memory_bytes(cluster) == 1000
    assert PROFILE.rank_memory_bytes(cluster.limited(400)) == 400
    shared = Cluster("two", "gpu", (Level("node", 2, "nvlink"),), None, 2)
    assert PROFILE.rank_memory_bytes(shared) == 500
    with pytest.raises(MismatchError, match="lower it"):
        PROFILE.rank_memory_bytes(cluster.limited(1001))
    with pytest.raises(MismatchError, match="made of cpu"):
        PROFILE.rank_memory_bytes(Cluster("one", "cpu", (Level("node", 2, "nvlink"),)))
    with pytest.raises(MismatchError, match="no link class"):
        PROFILE.rank_memory_bytes(Cluster("one", "gpu", (Level("node", 2, "pcie"),)))


def test_every_figure_is_listed() -> None:
    names = [name for name, _ in PROFILE.figures()]
    assert len(set(names)) == len(names)
    assert len(names) == 4 + 2 + 5 + 2 * (3 + 3)
    assert {"memory_bytes", "efficiency.memory.softmax", "links.ib.all_gather"} <= set(names)
    timed = Curve((1,), (1,), "bytes", "s", "made up", "proportional")
    link = LinkClass(
        "nvlink",
        figure(0, "s"),
        figure(0, "ratio"),
        figure(1, "ratio"),
        (CollectiveCurve("all_gather", timed, 2), CollectiveCurve("all_gather", timed, 2, 2)),
    )
    names = [name for name, _ in changed(links=(link,)).figures()]
    assert names[-2:] == ["links.nvlink.all_gather.2.1", "links.nvlink.all_gather.2.2"]


def test_it_parses_back() -> None:
    assert HardwareProfile.parse(str(PROFILE)) == PROFILE
    assert HardwareProfile.parse(str(changed(links=()))) == changed(links=())


def test_the_digest_follows_every_line() -> None:
    lines = str(PROFILE).split("\n")
    assert len(lines) == 1 + 4 + 2 + 5 + 2
    for index, line in enumerate(lines):
        if "1000 FLOP/s" not in line:
            continue
        text = "\n".join([*lines[:index], line.replace("1000", "1001"), *lines[index + 1 :]])
        assert HardwareProfile.parse(text).digest() != PROFILE.digest()
    assert len(PROFILE.digest()) == 64


@settings(deadline=None, max_examples=50)
@given(
    st.sampled_from(["matmul", "attention", "memory", "memory.softmax"]),
    st.floats(1, 1e6),
    st.floats(1, 1e6),
    st.floats(1, 4),
)
def test_more_work_never_takes_less_time(key, flops, moved, more) -> None:
    """Efficiencies here grow slower than the work, as they do on any device."""
    first = PROFILE.roofline_s(key, "float32", flops, moved)
    for second in (
        PROFILE.roofline_s(key, "float32", flops * more, moved),
        PROFILE.roofline_s(key, "float32", flops, moved * more),
    ):
        assert second >= first * (1 - 1e-12)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": "GPU"}, "lower-case"),
        ({"device": "tpu"}, "cpu, cuda"),
        ({"memory_bytes": figure(1, "s")}, "memory_bytes of gpu is in s"),
        ({"group_bytes": figure(1, "ratio")}, "group_bytes of gpu is in ratio"),
        ({"memory_bytes": figure(0, "bytes")}, "no memory"),
        ({"memory_bandwidth": figure(0, "bytes/s")}, "no memory"),
        ({"peak_flops_per_s": ()}, "lacks peaks"),
        ({"peak_flops_per_s": (("float99", figure(1, "FLOP/s")),)}, "not known"),
        ({"peak_flops_per_s": (("float32", figure(1, "FLOP")),)}, "give FLOP/s"),
        ({"peak_flops_per_s": (("float32", figure(0, "FLOP/s")),)}, "give FLOP/s"),
        ({"peak_flops_per_s": FIELDS["peak_flops_per_s"] * 2}, "more than one peak"),
        ({"efficiency": FIELDS["efficiency"][:1]}, "lacks attention, memory"),
        ({"efficiency": FIELDS["efficiency"] * 2}, "more than one efficiency"),
        ({"efficiency": (("conv", share("FLOP", (1, 1))),)}, "efficiency key 'conv'"),
        ({"efficiency": (("memory.", share("bytes", (1, 1))),)}, "efficiency key"),
        ({"efficiency": (("memory", share("FLOP", (1, 1))),)}, "give bytes -> ratio"),
        ({"efficiency": (("matmul", share("bytes", (1, 1))),)}, "give FLOP -> ratio"),
        ({"efficiency": (("matmul", share("FLOP", (1, 1.1))),)}, "raise the peak"),
        ({"links": FIELDS["links"] * 2}, "more than one link"),
    ],
)
def test_a_bad_profile_says_what_is_wrong(fields, problem) -> None:
    with pytest.raises(InvalidValueError, match=problem) as error:
        changed(**fields)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "gpu cuda", str(PROFILE) + "\n", str(PROFILE)[:-1], None])
def test_a_bad_text_does_not_parse(text) -> None:
    with pytest.raises(ParseError):
        HardwareProfile.parse(text)


def test_the_work_words_are_those_of_the_keys() -> None:
    assert {key.split(".")[0] for key, _ in PROFILE.efficiency} == set(WORK)
