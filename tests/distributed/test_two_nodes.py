"""A job on two emulated nodes: network namespaces joined by rate-limited links."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

NODES = """
set -eu
mount -t tmpfs t /run
mkdir -p /run/netns
ip link set lo up
ip link add br0 type bridge
ip link set br0 up
for i in 0 1; do
  ip netns add n$i
  ip link add v$i type veth peer name e0 netns n$i
  ip link set v$i master br0 up
  ip -n n$i addr add 10.9.0.$((i + 1))/24 dev e0
  ip -n n$i link set e0 up
  ip -n n$i link set lo up
  ip netns exec n$i tc qdisc add dev e0 root handle 1: htb default 10
  ip netns exec n$i tc class add dev e0 parent 1: classid 1:10 htb rate 400mbit burst 64k
done
for i in 1 0; do
  GLOO_SOCKET_IFNAME=e0 OMP_NUM_THREADS=1 ip netns exec n$i "$@" --nnodes 2 --node-rank $i \
    --nproc-per-node 1 --master-addr 10.9.0.1 --master-port 29600 -m shardwise train "$JOB" \
    --plan "$PLAN" > "$LOGS/node$i" 2>&1 &
done
status=0
for job in $(jobs -p); do wait "$job" || status=1; done
exit $status
"""

JOB = """
[model]
spec = "hf:configs/models/tiny-llama.json"
[data]
corpus = "{corpus}"
max_length = 256
[training]
steps = 2
tokens_per_step = 1024
clip_norm = 1.0
[run]
folder = "{folder}"
"""


@pytest.mark.needs_unshare
@pytest.mark.timeout(300)
def test_a_job_runs_on_two_nodes(tmp_path: Path) -> None:
    """The same plan and job as on one machine, started with torchrun --nnodes 2."""
    text = (ROOT / "README.md").read_text("utf-8")
    (tmp_path / "corpus").mkdir()
    for i, length in enumerate((7, 40, 89, 137, 256, 256)):
        (tmp_path / f"corpus/{i}.txt").write_text(text[i : i + length], "utf-8")
    job = tmp_path / "job.toml"
    job.write_text(JOB.format(corpus=tmp_path / "corpus/*.txt", folder=tmp_path / "out"))
    lengths, plan = tmp_path / "lengths.csv", tmp_path / "plan.json"
    run = [sys.executable, "-m", "shardwise"]
    for command in (
        ["lengths", str(tmp_path / "corpus/*.txt"), "-o", str(lengths), "--max-length", "256"],
        ["plan", "--job", str(job), "--cluster", "configs/clusters/local-2.toml",
         "--lengths", str(lengths), "-o", str(plan)],
    ):  # fmt: skip
        subprocess.run([*run, *command], cwd=ROOT, check=True, capture_output=True, timeout=200)
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    script = ["unshare", "-mn", "bash", "-c", NODES, "nodes", *torchrun]
    environment = {"JOB": str(job), "PLAN": str(plan), "LOGS": str(tmp_path)}
    done = subprocess.run(
        ["env", *(f"{k}={v}" for k, v in environment.items()), *script],
        cwd=ROOT, capture_output=True, timeout=250, text=True,
    )  # fmt: skip
    logs = [(tmp_path / f"node{i}").read_text() for i in (0, 1) if (tmp_path / f"node{i}").exists()]
    assert done.returncode == 0, "\n".join([done.stderr, *logs])
    assert "bytes moved by them" in logs[0]
    assert len((tmp_path / "out/metrics.jsonl").read_text().splitlines()) == 2
