"""Training on real ranks: the same losses on any ranks, switching, checkpoints, errors told once.

Most cases run in the pool of ranks; what torchrun does with a command is tested by the command.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shardwise.ir.plan_file import save as save_plan
from shardwise.runtime.checkpoint import read_masters
from shardwise.runtime.launch import restore, save
from tests.support.tiny_decoder import plan_of, write_job
from tests.support.training_rig import alone, losses, trainer_of

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 150


def train_steps(context, job, plan, steps, saves, resume):
    """A case: train, save after the last step; (losses, switches, bytes of switches, slots)."""
    trainer = trainer_of(context.communicator, job, plan)
    if resume is not None:
        restore(trainer, resume)
    found = losses(trainer, steps)
    if saves:
        save(trainer)
    for name, master in trainer.program.named_parameters():
        assert torch.equal(master.full_tensor(), trainer.program.store.full(name)), name
    totals = trainer.totals
    return found, totals.switches, totals.switch_bytes, dict(totals.slots)


@pytest.mark.parametrize("scheme", ["ZeRO-3", "ZeRO-1", "DDP"])
def test_two_strategies_on_two_ranks_train_like_one_process(real_ranks, tmp_path, scheme):
    job = write_job(tmp_path)
    expected = losses(trainer_of(alone(), job, plan_of("1")), 3)
    plan = plan_of("x0=2@l", scheme)
    results = real_ranks(2).run(
        train_steps, job, plan, 3, False, None, timeout_s=TIMEOUT_S, agree=True
    )
    found, switches, switch_bytes, slots = results[0]
    assert found == pytest.approx(expected, rel=1e-4)
    assert slots.keys() == {"data@16", "ulysses@64"} and all(slots.values())
    assert switches > 0 and switch_bytes == 0


def test_a_checkpoint_of_four_ranks_goes_on_with_two_and_with_one(real_ranks, tmp_path):
    job = write_job(tmp_path)
    expected = losses(trainer_of(alone(), job, plan_of("1")), 4)
    four = plan_of("x0=2@l data=2@l", "ZeRO-3")
    found, *_ = real_ranks(4).run(train_steps, job, four, 2, True, None, timeout_s=TIMEOUT_S)[0]
    assert found == pytest.approx(expected[:2], rel=1e-4)
    step = tmp_path / "run" / "step-2"
    two = plan_of("x0=2@l", "ZeRO-1")
    found, *_ = real_ranks(2).run(train_steps, job, two, 2, True, step, timeout_s=TIMEOUT_S)[0]
    assert found == pytest.approx(expected[2:], rel=1e-4)
    one = trainer_of(alone(), job, plan_of("1"))
    restore(one, step)
    for name, master in one.program.named_parameters():
        assert torch.equal(master.data, read_masters(step)[name])
        assert float(one.optimizer.state[master]["step"]) == 2
    assert losses(one, 2) == pytest.approx(expected[2:], rel=1e-4)
    restore(one, tmp_path / "run" / "step-4")
    assert one.step == 4


def torchrun(ranks, *arguments):
    """(exit code, standard output, lines of ours on standard error) of `shardwise` on ranks."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", str(ranks), "-m", "shardwise", *map(str, arguments),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun then ends its ranks
        output, errors = process.communicate(timeout=30)
        pytest.fail(f"{command} hung:\n{output}\n{errors}")
    ours = [line for line in errors.splitlines() if line.startswith("shardwise: ")]
    assert not [line for line in errors.splitlines() if "shardwise/runtime" in line], errors
    return process.returncode, output, ours


def test_the_command_trains_and_sums_up(tmp_path):
    job, plan = write_job(tmp_path), tmp_path / "plan.json"
    save_plan(plan_of("x0=2@l", "ZeRO-3"), plan)
    code, output, errors = torchrun(2, "train", job, "--plan", plan)
    assert (code, errors) == (0, []), output
    assert output.count("step 4/4") == 1
    (line,) = [line for line in output.splitlines() if "switches" in line]
    count, _, rest = line.partition(" ")
    assert int(count) > 0 and rest == "switches, 0 bytes moved by them"
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    expected = losses(trainer_of(alone(), job, plan_of("1")), 4)
    assert [json.loads(line)["loss"] for line in lines] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("what", ["world", "model", "documents"])
def test_an_error_is_told_once(tmp_path, what):
    job, plan = write_job(tmp_path), tmp_path / "plan.json"
    made, says = plan_of("x0=2@l"), "no bucket of the plan holds it"
    if what == "world":
        made, says = plan_of("x0=2@l data=2@l"), "the plan is for 4 ranks"
    elif what == "model":
        job = write_job(tmp_path, [(":build", ":build_other")])
        says = "at model: the plan is for"
    else:
        made = plan_of("x0=2@l", bands=((0, 16, "data", 1), (16, 32, "ulysses", 1)))
    save_plan(made, plan)
    code, _, errors = torchrun(2, "train", job, "--plan", plan)
    assert code != 0
    (line,) = errors
    assert says in line and line.startswith(("shardwise: rank 0: ", "shardwise: rank 1: "))
    assert not (tmp_path / "run").exists()
