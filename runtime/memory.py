"""Peak memory of this process between two moments, from the operating system or the device."""

from pathlib import Path

import torch


class PeakMeter:
    """Peak bytes since `start`: CUDA's allocator on cuda, VmHWM of the process on Linux.

    On cpu the figures are of the whole process, torch's own libraries included, and only meaningful
    with malloc set to give memory back (MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ of 65536;
    docs/run.md).
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._status = Path("/proc/self/status")
        self._clear = Path("/proc/self/clear_refs")
        self.base = self._read(peak=False)
        """Bytes in use when the meter was made; None where the system does not say."""
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
        peak = self._read(peak=True)
        if peak is not None:
            self.largest = max(peak, self.largest or 0)
        return peak

    def _read(self, *, peak: bool) -> int | None:
        if self.device.type == "cuda":
            read = torch.cuda.max_memory_allocated if peak else torch.cuda.memory_allocated
            return int(read(self.device))
        try:
            text = self._status.read_text()
        except OSError:
            return None
        name = "VmHWM:" if peak else "VmRSS:"
        for line in text.splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
        return None
