"""A few seconds at the start of training: does the machine still do what the plan was priced with?

A handful of points of the profile are measured again, on all ranks; a line names each that is off
by more than a fifth. A plan holds digests of its profiles and not the profiles, so the hardware
file is looked for by its name, and taken only where its digest is the plan's.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from shardwise.ir.cluster import Cluster
from shardwise.ir.config_files import CONFIGS, load_hardware
from shardwise.ir.errors import ShardwiseError
from shardwise.ir.hardware import HardwareProfile
from shardwise.ir.plan import Plan
from shardwise.ir.span import Span
from shardwise.runtime.communicator import Communicator
from shardwise.runtime.profile_command import HEADS
from shardwise.runtime.profile_links import MOVES, link_groups
from shardwise.runtime.profile_samples import FAST, Figure, Group, Session, shared_by_others
from shardwise.runtime.profile_work import (
    attention_groups,
    memory_groups,
    product_bytes,
    product_groups,
)

TOLERANCE: Final = 0.2
"""Largest part by which a figure may be off without a word."""
FEWEST: Final = 12
"""Repeats of each point; the fastest fifth of them counts, since other work only adds."""
POINTS: Final = {"matmul": 2, "attention": 1, "memory": 2, "link": 2}
"""Of each curve, how many sizes are measured again."""
SECONDS: Final = (1e-4, 2e-2)
"""Sizes whose price is in between are measured: long enough to time, short enough to repeat."""


def warn_of_changes(
    communicator: Communicator, plan: Plan, device: torch.device, say: Callable[[str], None]
) -> None:
    """Say which constants are off by over a fifth; nothing where the profile is not at hand.

    A collective of all ranks. Never raises for what is wrong with the profile or its file.
    """
    profile = profile_of(plan)
    session = Session(communicator, device)
    found = session.largest(0.0 if profile is not None else 1.0) == 0.0
    if profile is None or not found:  # of one mind: the files may differ between nodes
        return
    sharing = plan.priced_for.cluster.ranks_per_device
    if device.type == "cpu":  # figures leave out what others take
        shared = session.largest(shared_by_others(sharing=sharing))
        if shared > TOLERANCE:
            say(
                f"other processes have {100 * shared:.0f} % of a core: steps take longer than "
                "planned"
            )
    lines = list(check_profile(communicator, profile, plan.priced_for.cluster, device))
    if lines:
        say(
            f"{profile.name} is not what this machine does now; `shardwise profile` measures it "
            "again:"
        )
        for line in lines:
            say(f"  {line}")


def check_profile(
    communicator: Communicator,
    profile: HardwareProfile,
    cluster: Cluster,
    device: torch.device,
) -> list[str]:
    """One line for each measured figure that is off by more than TOLERANCE; on the first rank's
    figures all ranks agree. A collective of all ranks."""
    sharing = cluster.ranks_per_device
    session = Session(
        communicator, device, sharing=sharing, passes=1, repeats=FEWEST, budget_s=0.25
    )
    known = {dtype for dtype, _ in profile.peak_flops_per_s}
    dtype = "float32" if device.type == "cpu" or "bfloat16" not in known else "bfloat16"
    groups = [
        *_few(product_groups([dtype], device), profile, sharing, ("matmul",)),
        *_few(
            attention_groups([dtype], HEADS[device.type], device), profile, sharing, ("attention",)
        ),
        *_few(memory_groups(dtype, device), profile, sharing, ("memory",)),
    ]
    links = {link.name for link in profile.links}
    if communicator.world_size > 1 and links >= {level.link for level in cluster.levels}:
        groups += _few(link_groups(session, cluster), profile, sharing, tuple(MOVES))
    session.run(groups)
    lines: list[str] = []
    for key, points in session.figures(FAST).items():
        for x, figure in points.items():
            expected = price(profile, key, x, sharing)
            if expected is not None:
                lines += difference(key, x, figure, expected)
    return lines


def difference(key: str, x: float, figure: Figure, expected_s: float) -> Iterator[str]:
    """The line of one figure, if it is off."""
    ratio = figure.seconds / expected_s
    if 1 / (1 + TOLERANCE) <= ratio <= 1 + TOLERANCE:
        return
    unit = "FLOP" if key.split(".")[0] in ("matmul", "attention") else "bytes"
    way = f"{100 * (ratio - 1):.0f} % slower" if ratio > 1 else f"{100 * (1 - ratio):.0f} % faster"
    yield (
        f"{key.replace('.', ' ')} at {scaled(x, unit)} is {way} than the profile "
        f"({1e3 * figure.seconds:.3g} ms instead of {1e3 * expected_s:.3g} ms)"
    )


def scaled(x: float, unit: str) -> str:
    """`4.3 GFLOP`, `65.5 kB`."""
    short = "B" if unit == "bytes" else unit
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if x >= size:
            return f"{x / size:.3g} {prefix}{short}"
    return f"{x:.3g} {short}"


def price(profile: HardwareProfile, key: str, x: float, sharing: int) -> float | None:
    """Seconds that the profile states for a point of a key of figures; None where it has none."""
    work = key.split(".")[0]
    if work == "memory":
        return profile.memory_s(x, key)
    if work in ("matmul", "attention"):
        kind, _, dtype = key.rpartition(".")
        if dtype not in dict(profile.peak_flops_per_s):
            return None
        seconds = profile.compute_s(kind, dtype, x)
        if work == "matmul":  # its curve leaves the operands' bytes to the memory curve
            seconds += profile.memory_s(product_bytes(dtype).get(x, 0))
        return seconds
    link, kind, size = key.split(" ")
    found = next((item for item in profile.links if item.name == link), None)
    if found is None or kind not in {item.kind for item in found.collectives}:
        return None
    return found.seconds(kind, Span(link, int(size), None, sharing), x)


def profile_of(plan: Plan) -> HardwareProfile | None:
    """The hardware file that the plan was priced with, where it is at hand."""
    name = f"{plan.priced_for.cluster.hardware}.toml"
    for folder in (Path("configs/hardware"), Path("hardware"), Path(), CONFIGS / "hardware"):
        try:
            profile = load_hardware(folder / name)
        except (ShardwiseError, OSError):
            continue
        if profile.digest() == plan.priced_for.hardware_digest:
            return profile
    return None


def _few(
    groups: Iterator[Group], profile: HardwareProfile, sharing: int, kinds: tuple[str, ...]
) -> list[Group]:
    """One group of a kind of curve (its first; of attention that of head size 64), cut to a few
    sizes that the profile prices neither too short nor too long."""
    chosen: dict[str, Group] = {}
    for group in groups:
        kind = group.title.split(" ")[0]
        if kind not in kinds or ("head size" in group.title and "size 64" not in group.title):
            continue
        chosen.setdefault(kind, group)
        if len(chosen) == len(kinds):  # what comes after would be built, groups of ranks too
            break
    return [_cut(group, profile, sharing) for group in chosen.values()]


def _cut(group: Group, profile: HardwareProfile, sharing: int) -> Group:
    kept = []
    for planned in group.cases:
        seconds = price(profile, planned.key, planned.x, sharing)
        if seconds is not None and SECONDS[0] <= seconds <= SECONDS[1]:
            kept.append(planned)
    count = POINTS.get(group.title.split(" ")[0], POINTS["link"])
    step = max(1, len(kept) // (count + 1))
    return replace(group, cases=tuple(kept[step::step][:count] or kept[:count]))
