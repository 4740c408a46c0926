"""Names of GPUs as published, to hardware profiles."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.errors import UnsupportedError
from shardwise.ir.gpu_names import gpu_profile, known_gpus
from tests.support.profiles import HARDWARE

PUBLISHED = {
    "V100-SXM2-32GB": "v100-sxm2-32",
    "A100-SXM-40GB": "a100-sxm-40",
    "A100-SXM-80GB": "a100-sxm-80",
    "A100-80GB": "a100-sxm-80",
    "A800-80GB": "a800-sxm-80",
    "A800-SXM-80GB": "a800-sxm-80",
    "H100-SXM-80GB": "h100-sxm",
    "H100-SXM-96GB-HBM2e-500W": "h100-sxm-96",
    "H800-SXM-80GB": "h800-sxm",
    "H200-SXM-141GB": "h200",
    "B200-SXM": "b200",
    "MI300X-192GB": "mi300x",
    "MI325X-256GB": "mi325x",
}
"""Every distinct name of the published runs that the cost model is checked with."""


@pytest.mark.parametrize(("name", "profile"), PUBLISHED.items())
def test_names_of_the_published_runs(name, profile) -> None:
    assert gpu_profile(name) == profile
    assert profile in HARDWARE


@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from(sorted(PUBLISHED)),
    st.sampled_from(["", "NVIDIA ", "nvidia-"]),
    st.sampled_from(["-", " ", "_", ""]),
    st.sampled_from([str.lower, str.upper, str]),
)
def test_case_punctuation_and_vendor_do_not_matter(name, vendor, mark, case) -> None:
    assert gpu_profile(case(vendor + name.replace("-", mark))) == PUBLISHED[name]


def test_the_registry_and_the_files_are_the_same() -> None:
    assert set(known_gpus()) == set(HARDWARE) - {"cpu-gloo"}
    assert all(gpu_profile(profile) == profile for profile in known_gpus())


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("H100-SXM-64GB", "H100-SXM-96GB"),
        ("A100-SXM-800GB", "A100-SXM-80GB"),
        ("MI300A", "MI300X"),
        ("V100", "V100-"),
        ("TPU v5p", ""),
    ],
)
def test_an_unknown_name_shows_the_nearest(name, nearest) -> None:
    with pytest.raises(UnsupportedError, match=f"nearest known name is {nearest}") as error:
        gpu_profile(name)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["", " - ", None, 7, "\n"])
def test_what_is_no_name_is_refused(name) -> None:
    with pytest.raises(UnsupportedError, match="is not a name"):
        gpu_profile(name)


def test_no_two_names_look_alike() -> None:
    """A part's name never leads to another part, whatever is left out of it."""
    assert gpu_profile("A100 PCIe 40") != gpu_profile("A100 SXM 40")
    assert gpu_profile("GB200") != gpu_profile("B200")
