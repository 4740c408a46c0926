"""The check at the start of training: which figures it names, and when it keeps silent."""

from dataclasses import replace

import pytest
import torch

from shardwise.ir.cluster import Cluster
from shardwise.ir.config_write import hardware_toml
from shardwise.ir.curve import Constant, Curve
from shardwise.ir.hardware import HardwareProfile
from shardwise.ir.link import CollectiveCurve, LinkClass
from shardwise.ir.plan_file import save
from shardwise.runtime import profile_check
from shardwise.runtime.profile_check import (
    check_profile,
    difference,
    price,
    profile_of,
    scaled,
    warn_of_changes,
)
from shardwise.runtime.profile_samples import Figure
from shardwise.runtime.profile_work import product_bytes
from tests.support.tiny_decoder import plan_of
from tests.support.training_rig import alone

CPU = torch.device("cpu")
ONE = Cluster.parse("c mine machine:1@loopback")
TWO = Cluster.parse("c mine machine:2@loopback")


def flat(unit):
    return Curve((1.0,), (1.0,), unit, "ratio", "test")


def made(peak=1e6, bandwidth=1e6, seconds=1e-3):
    """A machine so slow that every price of a small call lies between the check's limits."""
    ratio = Constant(0, "ratio", "test")
    timed = Curve((1.0, 1e9), (seconds, seconds), "bytes", "s", "test", "proportional")
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    links = (
        LinkClass(
            "loopback", Constant(0, "s", "test"), ratio, Constant(1, "ratio", "test"),
            tuple(CollectiveCurve(kind, timed, 2) for kind in kinds),
        ),
    )  # fmt: skip
    return HardwareProfile(
        "mine", "cpu", Constant(1e9, "bytes", "test"), Constant(bandwidth, "bytes/s", "test"),
        Constant(0, "bytes", "test"), Constant(0, "bytes", "test"),
        (("float32", Constant(peak, "FLOP/s", "test")),),
        (("matmul", flat("FLOP")), ("attention", flat("FLOP")), ("memory", flat("bytes"))),
        links,
    )  # fmt: skip


def test_prices_are_those_of_the_profile():
    one = made(peak=1e9, bandwidth=1e8, seconds=0.5)
    ((flop, moved), *_) = product_bytes("float32").items()
    stated = price(one, "matmul.float32", flop, 1)
    assert stated == pytest.approx(flop / 1e9 + moved / 1e8)
    assert price(one, "attention.backward.d64.float32", 2e6, 1) == pytest.approx(2e-3)
    assert price(one, "memory.silu.backward", 1e6, 1) == pytest.approx(1e-2)
    assert price(one, "loopback all_reduce 2", 64.0, 1) == pytest.approx(0.5)
    for unknown in ("matmul.float64", "loopback broadcast 2", "ib all_reduce 2"):
        assert price(one, unknown, 64.0, 1) is None


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        (2.1e-3, ["matmul float32 at 4.3 GFLOP is 31 % slower than the profile (2.1 ms instead of "
                  "1.6 ms)"]),
        (1.2e-3, ["matmul float32 at 4.3 GFLOP is 25 % faster than the profile (1.2 ms instead of "
                  "1.6 ms)"]),
        (1.9e-3, []),
        (1.35e-3, []),
    ],
)  # fmt: skip
def test_only_what_is_off_by_a_fifth_is_named(seconds, says):
    assert list(difference("matmul.float32", 4.3e9, Figure(seconds, 0.0, 1), 1.6e-3)) == says


def test_sizes_for_people():
    assert [scaled(x, "bytes") for x in (12, 65536, 4194304)] == ["12 B", "65.5 kB", "4.19 MB"]
    assert [scaled(x, "FLOP") for x in (2.5e9, 3e12)] == ["2.5 GFLOP", "3 TFLOP"]


def test_a_profile_of_a_far_slower_machine_is_named_all_over():
    """Sizes are chosen where the profile says between 0.1 and 20 ms: here, tiny calls."""
    lines = check_profile(alone(), made(peak=1e7, bandwidth=1e7), ONE, CPU)
    assert {line.split(" ")[0] for line in lines} >= {"matmul", "memory"}
    assert all("% faster than the profile" in line for line in lines), lines


def check_links(context):
    one = made(peak=1e7, bandwidth=1e7, seconds=15e-3)
    return check_profile(context.communicator, one, TWO, CPU)


def test_ranks_check_their_links_and_agree(real_ranks):
    first, second = real_ranks(2).run(check_links)
    assert first == second
    links = {line.split(" ")[1] for line in first if line.startswith("loopback")}
    assert links == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}


@pytest.mark.parametrize(("shared", "count"), [(0.05, 0), (0.4, 1)])
def test_cores_that_others_have_are_said(monkeypatch, shared, count):
    said = []
    plan = plan_of("1")
    monkeypatch.setattr(profile_check, "profile_of", lambda plan: made())
    monkeypatch.setattr(profile_check, "check_profile", lambda *_: [])
    monkeypatch.setattr(profile_check, "shared_by_others", lambda sharing: shared)
    warn_of_changes(alone(), plan, CPU, said.append)
    assert said == ["other processes have 40 % of a core: steps take longer than planned"][:count]


def test_a_plan_whose_profile_is_not_at_hand_is_not_checked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = []
    plan = plan_of("1")
    warn_of_changes(alone(), plan, CPU, said.append)
    (tmp_path / "h.toml").write_text(hardware_toml(replace(made(), name="h")))
    assert profile_of(plan) is None  # another digest
    warn_of_changes(alone(), plan, CPU, said.append)
    (tmp_path / "h.toml").write_text("not a profile")
    warn_of_changes(alone(), plan, CPU, said.append)
    assert said == []


def test_a_plan_is_checked_against_the_file_with_its_digest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = replace(made(), name="h")
    (tmp_path / "configs/hardware").mkdir(parents=True)
    (tmp_path / "configs/hardware/h.toml").write_text(hardware_toml(one))
    plan = plan_of("1")
    plan = replace(plan, priced_for=replace(plan.priced_for, hardware_digest=one.digest()))
    save(plan, tmp_path / "plan.json")
    assert profile_of(plan) == one
    said = []
    monkeypatch.setattr(profile_check, "shared_by_others", lambda sharing: 0.0)
    monkeypatch.setattr(profile_check, "check_profile", lambda *_: ["matmul is off"])
    warn_of_changes(alone(), plan, CPU, said.append)
    assert said[0].startswith("h is not what this machine does now") and said[1:] == [
        "  matmul is off"
    ]
    monkeypatch.setattr(profile_check, "check_profile", lambda *_: [])
    said.clear()
    warn_of_changes(alone(), plan, CPU, said.append)
    assert said == []
