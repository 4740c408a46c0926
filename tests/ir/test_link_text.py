"""What publications say of the network between nodes."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.fabric import fabric_link
from shardwise.ir.fabric_kinds import FABRIC_KINDS
from shardwise.ir.link_text import inter_link_kind, inter_link_rate, is_single_node

TEXTS = [
    ("Omni-Path (Jean Zay V100 partition, 4 x 100 Gb/s per node)", 4, 12.5e9, "omni_path"),
    ("Omni-Path, 4 x 100 Gb/s per node", 8, 6.25e9, "omni_path"),
    ("400 Gb/s per node", 8, 6.25e9, None),
    ("800 Gb/s per node", 8, 12.5e9, None),
    ("RoCE, 4 x 100 Gb/s per node", 8, 6.25e9, "roce"),
    ("not stated", 8, None, None),
    ("8 x 100 Gb/s NICs per node", 8, 12.5e9, None),
    ("none (single node)", 8, None, None),
    ("none", 1, None, None),
    ("RoCE 1600 Gb/s per node", 8, 25e9, "roce"),
    ("not stated in README", 8, None, None),
    ("InfiniBand, 8 x HDR 200 Gb/s per node", 8, 25e9, "infiniband"),
    ("InfiniBand HDR (DGX SuperPOD)", 8, None, "infiniband"),
    ("EFA (AWS p5), 3200 Gb/s per node (per playbook; not in the svg)", 8, 50e9, "efa"),
    ("EFA (AWS p5)", 8, None, "efa"),
    (
        "not stated (NVIDIA reference clusters: 400 Gb/s InfiniBand per GPU)",
        8,
        50e9,
        "infiniband",
    ),
    ("InfiniBand (DGX reference; rate not stated)", 8, None, "infiniband"),
    ("InfiniBand HDR, 8 x 200 Gb/s per node (Selene)", 8, 25e9, "infiniband"),
    ("RoCE 400 Gb/s per GPU, 1:7 oversubscribed above 3072-GPU pods", 8, 50e9, "roce"),
    ("RDMA 400 Gb/s per GPU", 8, 50e9, None),
    ("InfiniBand, 800 Gb/s per node (repo config)", 8, 12.5e9, "infiniband"),
    ("RoCE RDMA (rate not stated)", 8, None, "roce"),
]
"""Every distinct text of the published runs that the cost model is checked with."""


@pytest.mark.parametrize(("text", "gpus_per_node", "rate", "kind"), TEXTS)
def test_texts_of_the_published_runs(text, gpus_per_node, rate, kind) -> None:
    found = inter_link_rate(text, gpus_per_node)
    assert found == rate if rate is None else math.isclose(found, rate)
    assert inter_link_kind(text) == kind
    assert is_single_node(text) == text.startswith("none")
    if found is not None:
        assert kind is None or kind in FABRIC_KINDS
        assert fabric_link("ib", kind or "infiniband", found, nodes=4).name == "ib"


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 16), st.sampled_from([25, 100, 200, 400, 800]), st.integers(1, 16))
def test_cards_are_counted_and_shared(cards, gigabits, gpus) -> None:
    shared = inter_link_rate(f"InfiniBand, {cards} x {gigabits} Gb/s per node", gpus)
    assert math.isclose(shared, cards * gigabits * 1e9 / 8 / gpus)
    assert math.isclose(inter_link_rate(f"{gigabits} Gb/s per GPU", gpus), gigabits * 1e9 / 8)


def test_units_are_bits_unless_they_are_bytes() -> None:
    assert inter_link_rate("50 GB/s per GPU", 8) == 50e9
    assert inter_link_rate("3.2 Tb/s per node", 8) == 50e9
    assert inter_link_rate("400 Gbps per GPU", 8) == 50e9


@pytest.mark.parametrize("text", [None, "", "per node", "400 per GPU", "NVLink3 600 GB/s", "4 x"])
def test_no_rate_is_none(text) -> None:
    assert inter_link_rate(text, 8) is None


def test_a_count_longer_than_an_integer_is_read() -> None:
    assert inter_link_rate(f"{'9' * 5000} x 200 Gb/s per GPU", 8) is not None


def test_the_rate_of_a_node_of_unknown_size_is_none() -> None:
    assert inter_link_rate("800 Gb/s per node", None) is None
    assert inter_link_rate("800 Gb/s per GPU", None) == 100e9


@pytest.mark.parametrize(
    ("text", "kind"),
    [("IB NDR", "infiniband"), ("8 x OPA", "omni_path"), ("Slingshot 11", "slingshot")],
)
def test_short_names_of_fabrics(text, kind) -> None:
    assert inter_link_kind(text) == kind
    assert inter_link_kind("RDMA") is None
    assert inter_link_kind(None) is None
