"""`shardwise profile`: measure this machine on all its ranks and write what plans are priced with.

    torchrun --nproc-per-node N -m shardwise profile -o hardware.toml

docs/profile.md has what is measured and how.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import torch

from shardwise.ir.cluster import PROFILE_NAME, Cluster, Level
from shardwise.ir.config_files import load_cluster
from shardwise.ir.config_write import hardware_toml, software_toml
from shardwise.ir.errors import InvalidValueError, MismatchError
from shardwise.ir.hardware import HardwareProfile
from shardwise.ir.software import SoftwareProfile
from shardwise.runtime.communicator import Communicator
from shardwise.runtime.profile_build import Measured, hardware_profile, software_profile
from shardwise.runtime.profile_floor import floor_groups
from shardwise.runtime.profile_links import link_groups, measure_group_bytes, measure_overlap
from shardwise.runtime.profile_memory import device_bytes, device_name, resident_bytes
from shardwise.runtime.profile_samples import (
    FAST,
    SHARED,
    Group,
    Session,
    ranks_per_device,
    shared_by_others,
)
from shardwise.runtime.profile_work import attention_groups, memory_groups, product_groups
from shardwise.runtime.ranks import connected


class Profiles(NamedTuple):
    """What a measurement comes to."""

    hardware: HardwareProfile
    software: SoftwareProfile
    yardstick_s: float
    """Of the slowest rank, its core's usual pace; 1 on cuda."""


DTYPES: Final = {
    "cpu": ("float32", "bfloat16", "float64"),
    "cuda": ("bfloat16", "float16", "float32"),
}
"""By device; the first is what memory-bound operators and attention are timed in."""
NO_ATTENTION: Final = ("float64",)
HEADS: Final = {"cpu": 1, "cuda": 16}
"""Of attention: a core does one after the other, a GPU all at once."""


def profile(
    output: Path,
    *,
    software_output: Path | None = None,
    device: str = "cpu",
    cluster: Path | None = None,
    quick: bool = False,
    say: Callable[[str], None] = print,
) -> Profiles:
    """Measure on this rank and all others of torchrun; the first writes both files and speaks.

    `quick` has fewer repeats: a look in a quarter of the time. Raises InvalidValueError for a file
    name that names no profile, MismatchError for a cluster of other ranks than there are.
    """
    if not PROFILE_NAME.fullmatch(output.stem):
        raise InvalidValueError(
            f"{output}: the profile is named after its file, in lower-case letters, digits, '-', "
            "'_' and '.'; rename the file"
        )
    software_path = software_output or output.with_name(f"{output.stem}-software.toml")
    if os.environ.get("RANK", "0") == "0":
        for path in (output, software_path):
            _check_writable(path)
    torch.set_num_threads(1)
    with connected(torch.device(device)) as communicator:
        leader = communicator.rank == 0
        found = measure(
            communicator,
            output.stem,
            software_path.stem,
            device=device,
            cluster=load_cluster(cluster) if cluster is not None else None,
            passes=1 if quick else 2,
            repeats=5 if quick else 10,
            shows=leader,
        )
        if leader:
            for path, text in (
                (output, hardware_toml(found.hardware)),
                (software_path, software_toml(found.software)),
            ):  # fmt: skip
                path.write_text(text, "utf-8")
                say(f"wrote {path}")
            for line in headlines(found.hardware, found.software):
                say(line)
    return found


def _check_writable(path: Path) -> None:
    """Raise InvalidValueError before minutes are spent on what could not be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise InvalidValueError(
            f"{path}: cannot be written ({error.strerror}); give a file in a folder of your own"
        ) from None
    if path.stat().st_size == 0:
        path.unlink()  # no empty profile where the measurement is broken off


def measure(
    communicator: Communicator,
    name: str,
    software_name: str,
    *,
    device: str = "cpu",
    cluster: Cluster | None = None,
    passes: int = 2,
    repeats: int = 10,
    shows: bool = False,
    keep: Callable[[Group], bool] = lambda group: True,
    **limits: float,
) -> Profiles:
    """Both profiles and the pace they are of, on ranks that are connected, all of which call it.

    `keep` chooses among the groups of cases (tests take a few); matmul, attention, memory and the
    launch floor have to be among them. `limits` are those of `Session`.
    """
    here = torch.device(device)
    context = resident_bytes(here)
    shape = cluster or cluster_of_ranks(communicator, here, name)
    if shape.world_size != communicator.world_size:
        raise MismatchError(
            f"cluster {shape.name} has {shape.world_size} ranks and {communicator.world_size} run; "
            "start as many as the cluster has"
        )
    sharing = shape.ranks_per_device
    session = Session(communicator, here, sharing=sharing, passes=passes, repeats=repeats, **limits)
    context = int(session.largest(context))
    group_bytes = measure_group_bytes(session)
    groups = [group for group in all_groups(session, shape) if keep(group)]
    shares = [shared_by_others(sharing=sharing)]
    with _progress(len(groups) * passes, shows) as done:
        session.run(groups, done)
    shares.append(shared_by_others(sharing=sharing))
    shared = session.largest(max(shares)) if device == "cpu" else 0.0
    quantile = FAST if shared > SHARED else 0.5
    local = int(os.environ.get("LOCAL_WORLD_SIZE", communicator.world_size))
    measured = Measured(
        name,
        device,
        shape,
        session.figures(quantile),
        DTYPES[device],
        quantile,
        shared,
        device_name(here),
        torch.__version__,
        time.strftime("%Y-%m-%d"),
        device_bytes(here, local, sharing),
        context,
        group_bytes,
        measure_overlap(session),
    )
    return Profiles(
        hardware_profile(measured),
        software_profile(measured, software_name),
        session.largest(session.yardstick.usual_s if session.computes else 0.0),
    )


def all_groups(session: Session, cluster: Cluster) -> list[Group]:
    """Every group of cases, of the device and of its links."""
    device = session.device
    dtypes = DTYPES[device.type]
    attention = [dtype for dtype in dtypes if dtype not in NO_ATTENTION]
    return [
        *floor_groups(device),
        *product_groups(dtypes, device),
        *attention_groups(attention, HEADS[device.type], device),
        *memory_groups(dtypes[0], device),
        *link_groups(session, cluster),
    ]


def cluster_of_ranks(communicator: Communicator, device: torch.device, hardware: str) -> Cluster:
    """What torchrun says of the ranks: those of a node over loopback or nvlink, nodes over network
    or ib; a rank that shares its core or GPU is slower by that."""
    world = communicator.world_size
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    near, far = ("loopback", "network") if device.type == "cpu" else ("nvlink", "ib")
    levels = []
    if local > 1 or world == local:
        levels.append(Level("machine", local, near))
    if world > local:
        levels.append(Level("cluster", world // local, far))
    return Cluster(
        "profiled", hardware, tuple(levels), None, ranks_per_device(communicator, device)
    )


def headlines(hardware: HardwareProfile, software: SoftwareProfile) -> Iterator[str]:
    """A few figures for people."""
    for dtype, peak in hardware.peak_flops_per_s:
        yield f"{dtype}: {peak.value / 1e9:.1f} GFLOP/s at most"
    yield f"memory: {hardware.memory_bandwidth.value / 1e9:.1f} GB/s at most"
    yield f"launch floor: {1e6 * software.launch_floor_s.value:.1f} us an operator and pass"
    for link in hardware.links:
        for item in link.collectives:
            if item.kind == "all_reduce" and item.group_size is not None:
                yield (
                    f"all_reduce of {item.group_size} over {link.name}: "
                    f"{1e3 * item.curve.y[0]:.2f} ms small, "
                    f"{item.curve.x[-1] / item.curve.y[-1] / 1e9:.2f} GB/s large"
                )
        yield f"overlap over {link.name}: {100 * link.overlap.value:.0f} %"


@contextmanager
def _progress(total: int, shows: bool) -> Iterator[Callable[[str], None]]:
    """A bar that moves by one with every call; none on ranks that do not show."""
    if not shows:
        yield lambda title: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TextColumn("{task.percentage:3.0f} %"), TimeElapsedColumn(),
               TextColumn("{task.description}"))  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("starting", total=total)

        def done(title: str) -> None:
            progress.update(task, advance=1, description=title)

        yield done
