"""The comparison of prices with runs: its statistics, its meter and its page."""

import gc
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.predicted_slots import Live, Point
from benchmarks.predicted_vs_measured import replace_section, report, spearman


@given(st.lists(st.floats(0, 1), min_size=2, max_size=12, unique=True), st.randoms())
def test_rank_correlation(values, random):
    other = random.sample(values, len(values))
    ranks = [np.argsort(np.argsort(one)) for one in (values, other)]
    assert np.isclose(spearman(values, other), np.corrcoef(*ranks)[0, 1])


def test_live_bytes_of_a_forward_and_backward():
    x = torch.ones(1000, requires_grad=True)
    gc.collect()
    with Live() as live:
        y = x.exp()  # 4000, which is saved
        z = y.view(10, 100).sin()  # 4000, and its input is y
        assert live.now == 8000
        z.sum().backward()
        del y, z
    assert live.now in (4000, 4004)  # the gradient of x
    assert 12000 <= live.peak <= 20008


def test_the_report_counts_errors_and_a_page_keeps_its_other_sections(tmp_path):
    point = Point(
        "data", "DDP", "none", 256, 2, compute_s=0.5, messages_s=0.4, pace=1.0, measured_s=1.0,
        spread=0.1, end_compute_s=0.1, end_messages_s=0.1, measured_end_s=0.2, predicted_live=99,
        measured_live=100, measured_vm=100,
    )  # fmt: skip
    other = replace(
        point, implementation="ulysses", compute_s=1.0, messages_s=0.2, pace=2.0, measured_s=2.0,
        predicted_live=100, measured_vm=10**9,
    )  # fmt: skip
    assert other.predicted_s == 2.2 and other.predicted_end_s == pytest.approx(0.3)
    assert other.predicted_step_s == pytest.approx(9.1) and other.measured_step_s == 8.2
    found = {"shared": 0.25, "world": 2, "points": [vars_of(one) for one in (point, other)]}
    text = report(found, "command")
    assert "2 ranks, 2 points; a busy loop waited 25 %" in text
    assert "1.00 to 2.00 times as long" in text
    # slots 10 and 10 %, at the pace of the profile 10 and 40; steps 9.5 and 11 %
    assert "median error 10.0 %, largest 10 %; Spearman 1.000" in text
    assert "at the pace of the profile, median error 25.0 %" in text
    assert "steps of 4" not in text and "a step of 4 slots: median error 10.2 %" in text
    assert "median error 0.50 %" in text and "1 of 2 within max(3 %, 24 MB)" in text
    page = tmp_path / "page.md"
    for name, body in (("a", "one"), ("b", "two"), ("a", "three")):
        replace_section(page, name, body)
    assert page.read_text().split("\n## ")[1:] == ["b\n\ntwo", "a\n\nthree"]


def vars_of(point):
    return {name: getattr(point, name) for name in point.__dataclass_fields__}
