"""How steady a machine is, for docs/profile.md: the pace of a core, small messages after computing,
and the check before training.

    torchrun --nproc-per-node 2 -m benchmarks.machine_noise [--write PAGE.md]
"""

import argparse
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Final

import torch

from benchmarks.page import put, table
from shardwise.ir.config_files import load_hardware
from shardwise.runtime.profile_check import check_profile
from shardwise.runtime.profile_command import cluster_of_ranks
from shardwise.runtime.profile_memory import device_name
from shardwise.runtime.profile_samples import Figure, Session, shared_by_others
from shardwise.runtime.ranks import connected

SECONDS: Final = 45.0
BETWEEN_S: Final = (0.0, 1e-4, 1e-3, 1e-2)
BYTES: Final = 1 << 10
REPEATS: Final = 150
HARDWARE: Final = Path("configs/hardware/cpu-gloo.toml")


def paces(session: Session) -> list[float]:
    """Seconds of the yardstick, again and again, on the slowest rank."""
    end = time.perf_counter() + SECONDS
    while session.largest(float(time.perf_counter() < end)):
        session.yardstick.take()
        time.sleep(0.2)
    return [max(row) for row in zip(*session.gathered(session.yardstick.seconds), strict=True)]


def gathers(session: Session) -> Iterator[list[str]]:
    """A small all_gather of all ranks after computing for a while."""
    a = torch.randn(64, 64)
    x = torch.randn(BYTES // 4 // session.communicator.world_size)
    for between_s in BETWEEN_S:
        times = []
        for _ in range(REPEATS):
            started = time.perf_counter()
            while time.perf_counter() - started < between_s:
                a @ a
            run = session.communicator.all_gather
            times.append(
                session.stopwatch.seconds(lambda run=run: run(x, session.everyone), waits=True)
            )
        figure = Figure.of(times, 0.5)
        slowest, spread, _ = max(session.gathered([figure.seconds, figure.spread, 0.0]))
        yield [f"{1e3 * between_s:g}", f"{1e3 * slowest:.2f}", f"{100 * spread:.0f}"]


def main() -> None:
    """The command line, on every rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="page to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device("cpu")
    with connected(device) as communicator:
        session = Session(communicator, device)
        shared = session.largest(shared_by_others())
        seconds = paces(session)
        rows = list(gathers(session))
        cluster = cluster_of_ranks(communicator, device, HARDWARE.stem)
        started = time.perf_counter()
        check_profile(communicator, load_hardware(HARDWARE), cluster, device)
        check_s = session.largest(time.perf_counter() - started)
        if communicator.rank != 0:
            return
        head = ("ms of computing before", "ms of the all_gather, median", "spread %")
        text = [
            "# How steady a machine is",
            "",
            f"{date.today()}, `torchrun --nproc-per-node {communicator.world_size} -m "
            f"benchmarks.machine_noise --write docs/benchmarks/machine-noise.md`, "
            f"{device_name(device)}; a busy loop waited {100 * shared:.0f} % of its time for a "
            "core.",
            "",
            f"- The yardstick, {len(seconds)} times within {SECONDS:g} s, by the time that its "
            f"thread had a core: {1e3 * min(seconds):.2f} to {1e3 * max(seconds):.2f} ms.",
            f"- The check before training: {check_s:.1f} s.",
            "",
            f"An all_gather of {BYTES} bytes, {REPEATS} times:",
            "",
            table(head, rows),
        ]
        put("\n".join(text) + "\n", options.write)


if __name__ == "__main__":
    main()
