"""Software profiles: operator seconds, text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.curve import Constant
from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.software import SoftwareProfile

RATIO, FLOOR = Constant(0.5, "ratio", "made up"), Constant(1e-5, "s", "made up")
PROFILE = SoftwareProfile("torch-cpu", "torch>=2.13,<2.14", "cpu", RATIO, FLOOR)


@settings(deadline=None, max_examples=50)
@given(
    st.sampled_from(["torch>=2.13,<2.14", "torch", "megatron-lm==0.5", "torch<3"]),
    st.sampled_from(["cpu", "cuda", "xpu"]),
    st.floats(1e-6, 1),
    st.floats(0, 1),
)
def test_a_profile_parses_back(versions, device, efficiency, floor) -> None:
    profile = SoftwareProfile(
        "a", versions, device, Constant(efficiency, "ratio", "x"), Constant(floor, "s", "y")
    )
    assert SoftwareProfile.parse(str(profile)) == profile


def test_operator_seconds_are_the_roofline_over_efficiency_or_the_floor() -> None:
    assert PROFILE.operator_s(1e-3) == 2e-3
    assert PROFILE.operator_s(1e-6) == 1e-5
    assert PROFILE.operator_s(0) == 1e-5


def test_ranks_on_one_device_take_turns() -> None:
    assert PROFILE.operator_s(1e-3, 2) == 4e-3
    assert PROFILE.operator_s(0, 2) == 2e-5


def test_the_digest_follows_every_figure_and_source() -> None:
    other = Constant(0.5, "ratio", "another source")
    changed = SoftwareProfile("torch-cpu", "torch>=2.13,<2.14", "cpu", other, FLOOR)
    assert len(PROFILE.digest()) == 64
    assert changed.digest() != PROFILE.digest()
    assert SoftwareProfile.parse(str(PROFILE)).digest() == PROFILE.digest()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"name": "Torch"}, "lower-case"),
        ({"version_range": "torch >=2"}, "version_range"),
        ({"version_range": "torch>=2,"}, "version_range"),
        ({"version_range": None}, "version_range"),
        ({"device": "tpu"}, "cpu, cuda"),
        ({"efficiency": FLOOR}, "ratio"),
        ({"launch_floor_s": RATIO}, "seconds"),
        ({"efficiency": Constant(0, "ratio", "x")}, "above 0"),
        ({"efficiency": Constant(1.5, "ratio", "x")}, "at most 1"),
    ],
)
def test_a_bad_profile_says_what_is_wrong(change, problem) -> None:
    fields = {
        "name": "a",
        "version_range": "torch",
        "device": "cpu",
        "efficiency": RATIO,
        "launch_floor_s": FLOOR,
    }
    with pytest.raises(InvalidValueError, match=problem):
        SoftwareProfile(**(fields | change))


@pytest.mark.parametrize("text", ["", "a torch cpu", str(PROFILE) + " ", str(PROFILE)[:-1]])
def test_a_bad_text_does_not_parse(text) -> None:
    with pytest.raises(ParseError):
        SoftwareProfile.parse(text)
