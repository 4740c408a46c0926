"""The comparison of prices with runs: its statistics, its meter and its page."""

import gc

import numpy as np
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
    point = Point("data", "DDP", "none", 256, 2, 0.9, 1.0, 0.1, 99, 100, 100)
    points = [point, Point("ulysses", "DDP", "none", 512, 1, 2.2, 2.0, 0.1, 100, 100, 10**9)]
    found = {"shared": 0.25, "world": 2, "points": [vars_of(one) for one in points]}
    text = report(found, "command")
    assert "2 ranks, 2 points; a busy loop waited 25 %" in text
    assert "median error 10.0 %, largest 10 %; Spearman 1.000" in text
    assert "median error 0.50 %" in text and "1 of 2 within max(3 %, 24 MB)" in text
    page = tmp_path / "page.md"
    for name, body in (("a", "one"), ("b", "two"), ("a", "three")):
        replace_section(page, name, body)
    assert page.read_text().split("\n## ")[1:] == ["b\n\ntwo", "a\n\nthree"]


def vars_of(point):
    return {name: getattr(point, name) for name in point.__dataclass_fields__}
