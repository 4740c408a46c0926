"""The peak of this process, as far as the system says it."""

from pathlib import Path

import pytest
import torch

from shardwise.runtime.memory import PeakMeter

LINUX = Path("/proc/self/status").exists()


@pytest.mark.skipif(not LINUX, reason="reads /proc")
def test_peak_is_above_base_by_what_was_held():
    meter = PeakMeter(torch.device("cpu"))
    assert meter.base is not None and meter.largest is None
    meter.start()
    held = torch.ones(16_000_000)  # 64 MB, written
    first = meter.peak_bytes()
    assert first is not None and first - meter.base > 50e6
    del held
    meter.start()
    second = meter.peak_bytes()
    assert second is not None and meter.largest == max(first, second)


def test_systems_that_do_not_say(tmp_path):
    meter = PeakMeter(torch.device("cpu"))
    meter._status = meter._clear = tmp_path / "none" / "status"
    meter.start()
    assert meter.peak_bytes() is None and meter.largest is None
