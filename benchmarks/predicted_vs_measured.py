"""Prices of the planner beside runs of the runtime, on the machine whose profile they were made of.

    python -m benchmarks.predicted_vs_measured --ranks 2 --write PAGE.md
    python -m benchmarks.predicted_vs_measured --ranks 4 --mbit 400 --write PAGE.md

measures the machine (`shardwise profile`), then runs slots of the quickstart's model: every
implementation x parameter scheme x recomputation x length, interleaved, and the end of a step; and
compares seconds, live bytes and VmHWM with what the planner states. `--mbit` puts every rank in a
network namespace of its own, joined by links of that rate (needs `unshare -mn`).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.order import spearman as spearman
from benchmarks.page import table
from benchmarks.predicted_slots import SLOTS, Point, run

ROOT: Final = Path(__file__).parents[1]
SCHEME_NAMES: Final = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")
HEAD: Final = (
    "strategy", "scheme", "recompute", "S", "predicted ms", "measured ms", "ratio", "spread %",
    "end of step ms predicted", "measured", "live MB predicted", "measured", "VmHWM MB",
)  # fmt: skip
MALLOC: Final = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}

NODES: Final = """
set -eu
mount -t tmpfs t /run; mkdir -p /run/netns; ip link set lo up
ip link add br0 type bridge; ip link set br0 up
for i in $(seq 0 $((N - 1))); do
  ip netns add n$i; ip link add v$i type veth peer name e0 netns n$i; ip link set v$i master br0 up
  ip -n n$i addr add 10.9.0.$((i + 1))/24 dev e0; ip -n n$i link set e0 up; ip -n n$i link set lo up
  for where in "ip netns exec n$i tc:e0" "tc:v$i"; do
    tc=${where%%:*}; dev=${where##*:}
    $tc qdisc add dev $dev root handle 1: htb default 10
    $tc class add dev $dev parent 1: classid 1:10 htb rate ${MBIT}mbit burst 64k
  done
done
for i in $(seq $((N - 1)) -1 0); do
  GLOO_SOCKET_IFNAME=e0 ip netns exec n$i "$@" &
  last=$!
done
wait $last
for job in $(jobs -p); do wait "$job" || exit 1; done
"""


def report(found: dict[str, Any], command: str) -> str:
    """A section of the page."""
    points = [Point(**item) for item in found["points"]]
    errors = sorted(abs(p.ratio - 1) for p in points)
    rank = spearman([p.predicted_s for p in points], [p.measured_s for p in points])
    steps = sorted(abs(p.predicted_step_s / p.measured_step_s - 1) for p in points)
    step_rank = spearman([p.predicted_step_s for p in points], [p.measured_step_s for p in points])
    plain = median(abs((p.compute_s + p.messages_s) / p.measured_s - 1) for p in points)
    live = sorted(abs(p.predicted_live / p.measured_live - 1) for p in points)
    vm = sorted(
        abs(p.predicted_live - p.measured_vm) / max(0.03 * p.measured_vm, 24e6) for p in points
    )
    lines = [
        f"{date.today()}: `{command}`; {found['world']} ranks, {len(points)} points; a busy loop "
        f"waited {100 * found['shared']:.0f} % of its time for a core. Beside the slots the cores "
        f"took {min(p.pace for p in points):.2f} to {max(p.pace for p in points):.2f} times as "
        f"long for the same work as in the profile (median {median(p.pace for p in points):.2f}), "
        "and predicted computing is taken at that pace.",
        "",
        f"- seconds of a step of {SLOTS} slots: median error {100 * median(steps):.1f} %, largest "
        f"{100 * steps[-1]:.0f} %; Spearman {step_rank:.3f}",
        f"- seconds of a slot: median error {100 * median(errors):.1f} %, largest "
        f"{100 * errors[-1]:.0f} %; Spearman {rank:.3f}; median spread of the repeats "
        f"{100 * median(p.spread for p in points):.0f} %; at the pace of the profile, median "
        f"error {100 * plain:.1f} %",
        f"- live bytes of a slot: median error {100 * median(live):.2f} %, largest "
        f"{100 * live[-1]:.1f} %",
        f"- VmHWM of a slot: {sum(x <= 1 for x in vm)} of {len(vm)} within max(3 %, 24 MB), "
        f"largest {vm[-1]:.2f} times that",
        "",
        table(HEAD, map(cells, points)),
    ]
    return "\n".join(lines) + "\n"


def cells(p: Point) -> list[str]:
    """A row of the table, in the order of HEAD."""
    return [
        p.implementation, p.scheme, p.recompute, str(p.length),
        f"{1e3 * p.predicted_s:.1f}", f"{1e3 * p.measured_s:.1f}", f"{p.ratio:.2f}",
        f"{100 * p.spread:.0f}", f"{1e3 * p.predicted_end_s:.1f}", f"{1e3 * p.measured_end_s:.1f}",
        f"{p.predicted_live / 1e6:.2f}", f"{p.measured_live / 1e6:.2f}",
        f"{p.measured_vm / 1e6:.2f}",
    ]  # fmt: skip


def sharing(arguments: argparse.Namespace) -> list[str]:
    """How many ranks share a core, where torchrun cannot say: each namespace has one rank."""
    count = arguments.sharing
    if count is None and arguments.mbit is not None:
        count = -(-arguments.ranks // len(os.sched_getaffinity(0)))
    return [] if count is None else ["--sharing", str(count)]


def start(arguments: argparse.Namespace, command: Sequence[str]) -> None:
    """Run a module's command on all ranks: one torchrun, or one a namespace."""
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if arguments.mbit is None:
        environment["GLOO_SOCKET_IFNAME"] = "lo"
        one = [*torchrun, "--standalone", "--nproc-per-node", str(arguments.ranks), *command]
        subprocess.run(one, cwd=ROOT, env=environment, check=True)
        return
    environment |= {"N": str(arguments.ranks), "MBIT": str(arguments.mbit)}
    node = [
        "bash", "-c",
        'a=$(ip -4 -o addr show e0); a=${a#*10.9.0.}; exec "$0" "$@" --node-rank $((${a%%/*} - 1))'
        ' --master-addr 10.9.0.1 --master-port 29600 $REST',
    ]  # fmt: skip
    environment["REST"] = " ".join(command)
    one = [*torchrun, "--nnodes", str(arguments.ranks), "--nproc-per-node", "1"]
    script = ["unshare", "-mn", "bash", "-c", NODES, "nodes", *node, *one]
    subprocess.run(script, cwd=ROOT, env=environment, check=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--mbit", type=int, help="rate of every rank's link")
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 512, 1024, 2048])
    parser.add_argument("--schemes", nargs="+", default=list(SCHEME_NAMES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--hardware", type=Path, help="a profile that exists already")
    parser.add_argument("--software", type=Path)
    parser.add_argument("--points", type=Path, help="keep the points here (JSON)")
    parser.add_argument("--write", type=Path, help="page to replace the section of")
    parser.add_argument("--on-rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--sharing", type=int, help="ranks on a core (default: as torchrun says)")
    arguments = parser.parse_args()
    if arguments.on_rank:
        run(
            arguments.hardware, arguments.software, arguments.points, arguments.lengths,
            arguments.rounds, arguments.schemes, arguments.sharing,
        )  # fmt: skip
        return
    with tempfile.TemporaryDirectory() as folder:
        hardware = arguments.hardware or Path(folder) / "machine.toml"
        software = arguments.software or Path(folder) / "machine-software.toml"
        points = arguments.points or Path(folder) / "points.json"
        here = ["-m", "benchmarks.predicted_vs_measured", "--on-rank"]
        command = [
            *here, "--hardware", str(hardware), "--software", str(software), "--points",
            str(points), "--lengths", *map(str, arguments.lengths), "--schemes",
            *arguments.schemes, *sharing(arguments), "--rounds",
        ]  # fmt: skip
        start(arguments, [*command, str(arguments.rounds)])
        found = json.loads(points.read_text())
        os.environ.update(MALLOC)  # in runs of their own, since it costs time
        start(arguments, [*command, "0"])
        for point, other in zip(
            found["points"], json.loads(points.read_text())["points"], strict=True
        ):
            point["measured_live"] = other["measured_live"]
            point["measured_vm"] = other["measured_vm"]
        points.write_text(json.dumps(found))
    text = report(found, "python -m benchmarks.predicted_vs_measured " + " ".join(sys.argv[1:]))
    print(text)
    if arguments.write is not None:
        name = f"{arguments.ranks} ranks" + f" at {arguments.mbit} Mbit/s" * bool(arguments.mbit)
        replace_section(arguments.write, name, text)


def replace_section(page: Path, name: str, text: str) -> None:
    """Put a section `## name` in a page, in the place of an older one."""
    parts = page.read_text("utf-8").split("\n## ") if page.exists() else ["# Predicted, measured\n"]
    kept = [part for part in parts[1:] if part.partition("\n")[0] != name]
    page.write_text("\n## ".join([parts[0], *kept, f"{name}\n\n{text}"]), "utf-8")


if __name__ == "__main__":
    main()
