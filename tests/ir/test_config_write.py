"""Profiles written as TOML: what the shipped files do not have."""

from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.config_files import load_hardware
from shardwise.ir.config_write import hardware_toml
from shardwise.ir.curve import Constant, Curve
from shardwise.ir.hardware import HardwareProfile
from shardwise.ir.link import COLLECTIVES, CollectiveCurve, LinkClass

SOURCES = st.text(max_size=20).map(
    lambda text: "s" + "".join(mark for mark in text if mark.isprintable())
)


@st.composite
def curves(draw, x_unit, y_unit, end="clamp", most=1e12):
    x = sorted(draw(st.sets(st.floats(1e-3, 1e15), min_size=1, max_size=3)))
    y = draw(st.lists(st.floats(1e-9, most), min_size=len(x), max_size=len(x)))
    return Curve(tuple(x), tuple(y), x_unit, y_unit, draw(SOURCES), end)


@st.composite
def links(draw):
    collectives = [
        CollectiveCurve(kind, draw(curves("bytes", "bytes/s")))
        for kind in draw(st.sets(st.sampled_from(COLLECTIVES), max_size=2))
    ]
    for size in draw(st.sets(st.integers(2, 64), max_size=2)):
        curve = draw(curves("bytes", "s", "proportional"))
        collectives.append(CollectiveCurve("all_reduce", curve, size, draw(st.integers(1, 3))))
    ratio = Constant(draw(st.floats(0, 1)), "ratio", draw(SOURCES))
    over = Constant(draw(st.floats(1, 9)), "ratio", draw(SOURCES))
    name = draw(st.from_regex(r"[a-z][a-z0-9_-]{0,5}", fullmatch=True))
    return LinkClass(name, Constant(0, "s", draw(SOURCES)), ratio, over, tuple(collectives))


@st.composite
def profiles(draw):
    def figure(unit):
        return Constant(draw(st.floats(1, 1e18)), unit, draw(SOURCES))

    keys = ["matmul", "attention", "memory", "matmul.float32", "memory.gelu"]
    keys = keys[: draw(st.integers(3, 5))]
    return HardwareProfile(
        draw(st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,8}", fullmatch=True)),
        draw(st.sampled_from(["cpu", "cuda"])),
        figure("bytes"),
        figure("bytes/s"),
        figure("bytes"),
        figure("bytes"),
        tuple((dtype, figure("FLOP/s")) for dtype in ("float32", "float8_e4m3fn")),
        tuple(
            (
                key,
                draw(curves("bytes" if key.startswith("memory") else "FLOP", "ratio", most=1)),
            )
            for key in keys
        ),
        tuple(draw(st.lists(links(), max_size=2, unique_by=lambda link: link.name))),
    )


@settings(deadline=None, max_examples=40)
@given(profile=profiles())
def test_any_profile_reads_back_from_its_file_and_its_text(profile, tmp_path_factory) -> None:
    path = tmp_path_factory.mktemp("profile") / "profile.toml"
    path.write_text(hardware_toml(profile), encoding="utf-8")
    assert load_hardware(path) == profile
    assert HardwareProfile.parse(str(profile)) == profile
