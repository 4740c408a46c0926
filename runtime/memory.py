"""Peak memory of this process between two moments, from the operating system or the device."""

from pathlib import Path

import torch


class PeakMeter:
    """Peak bytes since `start`: CUDA's allocator on cuda, VmHWM of the process on Linux.

    On cpu the figure is of the whole process and only meaningful with malloc set to give memory
    back (MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ of 65536; docs/run.md).
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._status = Path("/proc/self/status")
        self._clear = Path("/proc/self/clear_refs")
        self.largest: int | None = None
        """Largest peak that was read."""

    def start(self) -> None:
        """Forget earlier peaks, where the system can."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        try:
            self._clear.write_text("5")
        except OSError:
            return

    def peak_bytes(self) -> int | None:
        """Peak bytes since `start`; None where the system does not say."""
        peak = self._read()
        if peak is not None:
            self.largest = max(peak, self.largest or 0)
        return peak

    def _read(self) -> int | None:
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device))
        try:
            text = self._status.read_text()
        except OSError:
            return None
        for line in text.splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return None
