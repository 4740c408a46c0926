"""What a rank holds before its first tensor, and what its device has in all."""

import os
from pathlib import Path

import torch


def resident_bytes(device: torch.device) -> int:
    """Bytes in use by this process: VmRSS on cpu; on cuda all of the device but the allocator's
    blocks (of every process on it)."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return int(total - free - torch.cuda.memory_reserved(device))
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmRSS")


def device_bytes(device: torch.device, ranks_on_node: int, sharing: int) -> int:
    """Bytes of one device: on cpu an equal part of the node's memory for each core in use."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return total // max(1, ranks_on_node // sharing)


def device_name(device: torch.device) -> str:
    """The part as the system calls it, for sources; no name of the machine."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    model = "cpu"
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = " ".join(line.partition(":")[2].split())
                break
    except OSError:
        pass
    return f"{len(os.sched_getaffinity(0))} cores of {model}"
