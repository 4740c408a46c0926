"""Ranks of the accumulator experiment: processes on 127.0.0.1 over gloo, with a time-out.

The launcher owns the store (a free port of 127.0.0.1 chosen by the system) and its processes;
when one fails or the time is over it ends exactly those.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
import traceback
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from benchmarks.risks.accumulator_collectives import Communicator, Cut, make_groups
from benchmarks.risks.accumulator_experiment import Case, Outcome, run_case
from benchmarks.risks.accumulator_pairs import check_pairs


@dataclass(frozen=True, slots=True)
class RankResult:
    """What one rank sends back."""

    outcomes: tuple[Outcome, ...]
    """One per case."""
    pairs: tuple[tuple[str, int, float], ...]
    """Per mesh: its text, the pairs of layouts tried, the largest error."""


def launch(cases: tuple[Case, ...], timeout_s: float) -> tuple[RankResult, ...]:
    """Run cases of one world size, in order, on as many processes as the mesh has ranks.

    Before the cases, every pair of layouts of each mesh is tried. Returns the results by rank.

    Raises RuntimeError with the traceback of the first rank that fails, TimeoutError after
    `timeout_s`.
    """
    world_size = cases[0].mesh.world_size
    store = TCPStore("127.0.0.1", 0, world_size, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe(duplex=False) for _ in range(world_size)]
    processes = [
        context.Process(
            target=_rank_main, args=(rank, store.port, cases, timeout_s, sender), daemon=True
        )
        for rank, (_, sender) in enumerate(pipes)
    ]
    deadline = time.monotonic() + timeout_s
    results: dict[int, RankResult] = {}
    try:
        for process, (_, sender) in zip(processes, pipes, strict=True):
            process.start()
            sender.close()
        receivers = {receiver: rank for rank, (receiver, _) in enumerate(pipes)}
        while receivers:
            ready = wait(list(receivers), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(
                    f"no result of ranks {sorted(receivers.values())} in {timeout_s} s"
                )
            for receiver in ready:
                if not isinstance(receiver, Connection):
                    raise TypeError(f"expected a pipe, got {type(receiver)}")
                rank = receivers.pop(receiver)
                results[rank] = _receive(receiver, rank)
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.exitcode != 0:
                raise RuntimeError(f"{process.name} left with exit code {process.exitcode}")
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()
    return tuple(results[rank] for rank in range(world_size))


def _receive(receiver: Connection, rank: int) -> RankResult:
    try:
        message = receiver.recv()
    except EOFError:
        raise RuntimeError(f"rank {rank} ended without a result") from None
    if isinstance(message, str):
        raise RuntimeError(f"rank {rank} failed:\n{message}")
    result: RankResult = message
    return result


def _rank_main(
    rank: int, port: int, cases: tuple[Case, ...], timeout_s: float, sender: Connection
) -> None:
    """Body of one process: sends its result, or a traceback."""
    loopback = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    if loopback:
        os.environ["GLOO_SOCKET_IFNAME"] = loopback[0]
    torch.set_num_threads(1)
    timeout = timedelta(seconds=timeout_s)
    mesh = cases[0].mesh
    try:
        store = TCPStore("127.0.0.1", port, mesh.world_size, False, timeout)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=mesh.world_size, timeout=timeout
        )
        communicators = {}
        for case in cases:
            if case.mesh not in communicators:
                groups = make_groups(case.mesh, rank)
                communicators[case.mesh] = Communicator(case.mesh, rank, groups=groups)
        pairs = tuple(
            (str(mesh), *check_pairs(communicator, Cut(1, 10)))
            for mesh, communicator in communicators.items()
        )
        outcomes = tuple(run_case(case, communicators[case.mesh]) for case in cases)
        sender.send(RankResult(outcomes, pairs))
        dist.destroy_process_group()
    except Exception:
        sender.send(traceback.format_exc())
        raise
