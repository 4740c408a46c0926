"""Nothing that goes wrong on a rank may pass for right, cost a time-out, or leave a process."""

import os
import pathlib
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace

import pytest
import torch

from shardwise.ir.errors import InvalidValueError
from shardwise.runtime.rank_failure import RanksFailedError
from tests.ranks.agree import RanksDisagreeError, assert_ranks_agree
from tests.ranks.case import CaseReference, RankContext
from tests.ranks.real import RealPool

ROOT = pathlib.Path(__file__).resolve().parents[2]

LONG_S = 600.0
"""A time-out that no test waits for: what needs it must be noticed before."""


@dataclass(frozen=True)
class Note:
    """Defined in a test file, sent both ways."""

    text: str
    rank: int = -1


def sum_of_ranks(context: RankContext, scale: float) -> float:
    x = torch.tensor(scale * context.rank)
    return context.communicator.all_reduce(x, context.everyone).item()


def sign(context: RankContext, note: Note) -> Note:
    return replace(note, text=note.text + "!", rank=context.rank)


def add_rank(context: RankContext, numbers: torch.Tensor) -> torch.Tensor:
    return numbers.add_(context.rank)


def process_id(context: RankContext) -> int:
    return os.getpid()


def misbehave(context: RankContext, how: str, bad_rank: int) -> float:
    """One rank goes wrong while the others wait for it in a collective."""
    if context.rank == bad_rank:
        print(f"about to {how}")
        if how == "raise":
            raise ValueError("a planted error")
        if how == "exit":
            os._exit(7)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "hang":
            hang_here()
    return sum_of_ranks(context, 1.0)


def hang_here() -> None:
    until_s = time.monotonic() + 20.0
    while time.monotonic() < until_s:
        time.sleep(0.01)


def spin_forever(context: RankContext) -> None:
    while context.rank == 0:
        pass
    sum_of_ranks(context, 1.0)


def add_one_on(context: RankContext, bad_rank: int) -> dict[str, torch.Tensor]:
    loss = torch.full((3,), 2.0)
    loss[1] += context.rank == bad_rank
    return {"weight": torch.ones(2), "loss": loss}


def give_lambda(context: RankContext) -> object:
    return (lambda: 0) if context.rank == 1 else 0


def state_and_parent(pid: int) -> tuple[str, int]:
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "gone", 0
    return fields[0], int(fields[1])


def is_running(pid: int) -> bool:
    return state_and_parent(pid)[0] not in ("Z", "gone")


@pytest.mark.parametrize("world_size", [2, 4])
def test_results_come_in_rank_order(ranks, world_size):
    results = ranks(world_size).run(sign, Note("seen"))
    assert results == [Note("seen!", rank) for rank in range(world_size)]


@pytest.mark.parametrize("world_size", [2, 4])
def test_the_ranks_really_communicate(ranks, world_size):
    total = world_size * (world_size - 1) / 2
    assert ranks(world_size).run(sum_of_ranks, 3.0, agree=True) == [3.0 * total] * world_size


def test_each_rank_has_its_own_copy_of_the_arguments(ranks):
    numbers = torch.zeros(2)
    assert [x.tolist() for x in ranks(2).run(add_rank, numbers)] == [[0.0, 0.0], [1.0, 1.0]]
    assert numbers.tolist() == [0.0, 0.0]


def test_real_ranks_are_processes_that_stay(real_ranks):
    pool = real_ranks(2)
    first = pool.run(process_id)
    assert tuple(first) == pool.pids
    assert len({*first, os.getpid()}) == 3
    assert pool.run(process_id) == first
    assert real_ranks(2) is pool


def test_a_raising_rank_is_named_with_its_traceback_at_once(ranks):
    with pytest.raises(RanksFailedError, match="rank 1 raised: ValueError") as caught:
        ranks(2).run(misbehave, "raise", 1, timeout_s=LONG_S)
    first = caught.value.first
    assert (first.rank, first.kind) == (1, "raised")
    assert "in misbehave" in first.detail
    assert "a planted error" in str(caught.value)
    assert ranks(2).run(sum_of_ranks, 1.0) == [1.0, 1.0]


def test_a_hanging_rank_is_named_with_its_stack(ranks):
    pool = ranks(2)
    with pytest.raises(RanksFailedError, match=r"rank 0 hung: not done after 1\.5 s") as caught:
        pool.run(misbehave, "hang", 0, timeout_s=1.5)
    hung, waiting = caught.value.failures
    assert "in hang_here" in hung.detail
    assert (waiting.rank, waiting.kind) == (
        1,
        "hung" if isinstance(pool, RealPool) else "raised",
    )
    assert "in sum_of_ranks" in waiting.detail
    assert ranks(2).run(sum_of_ranks, 1.0) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("how", "summary"), [("exit", "exit code 7"), ("kill", "killed by SIGKILL")]
)
def test_a_dead_rank_is_reported_at_once_and_nothing_else_is_killed(real_ranks, how, summary):
    pool = real_ranks(2)
    pool.run(process_id)
    old = pool.pids
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with pytest.raises(RanksFailedError, match=summary) as caught:
            pool.run(misbehave, how, 1, timeout_s=LONG_S)
        first = caught.value.first
        assert (first.rank, first.kind) == (1, "died")
        assert f"about to {how}" in first.detail
        assert pool.pids == ()
        assert not any(is_running(pid) for pid in old)
        assert bystander.poll() is None
    finally:
        bystander.communicate(b"\n")
    assert bystander.returncode == 0


def test_a_rank_that_died_between_cases_is_reported_and_replaced(real_ranks):
    pool = real_ranks(2)
    old = pool.run(process_id)
    os.kill(old[0], signal.SIGKILL)
    while is_running(old[0]):
        time.sleep(0.01)
    with pytest.raises(RanksFailedError, match="rank 0 died: killed by SIGKILL"):
        pool.run(sum_of_ranks, 1.0, timeout_s=LONG_S)
    new = pool.run(process_id)
    assert not {*old} & {*new}
    assert pool.run(sum_of_ranks, 1.0) == [1.0, 1.0]


@pytest.mark.parametrize("bad_rank", [0, 2])
def test_a_rank_that_computes_something_else_is_named(ranks, bad_rank):
    with pytest.raises(RanksDisagreeError) as caught:
        ranks(4).run(add_one_on, bad_rank, agree=True)
    others = ", ".join(str(rank) for rank in range(4) if rank != bad_rank)
    assert str(caught.value) == (
        f"ranks disagree: rank {bad_rank} from ranks {others} at result['loss']: "
        "1 of 3 elements, the first at flat index 1: 3.0, not 2.0"
    )
    assert len(ranks(4).run(add_one_on, bad_rank)) == 4


@pytest.mark.parametrize(
    ("usual", "odd", "what"),
    [
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64), "torch.float64"),
        (torch.zeros(2), torch.zeros(1, 2), r"\[1, 2\]"),
        (torch.tensor(0.0), torch.tensor(-0.0), "-0.0"),
        (torch.zeros(1, dtype=torch.bfloat16), torch.ones(1, dtype=torch.bfloat16), "1.0"),
        ([1, 2], [1], "1 items"),
        ([1, 2], (1, 2), "tuple"),
        ({"a": 1}, {"b": 1}, "keys"),
        (Note("a"), Note("b"), r"\.text: 'b'"),
        (1.0, 1.0000001, "1.0000001"),
        (float("nan"), 0.0, "not nan"),
    ],
)
def test_disagreement_of_every_type_is_seen(usual, odd, what):
    assert_ranks_agree([usual, usual])
    with pytest.raises(RanksDisagreeError, match=f"rank 1 from ranks 0, 2 at .*{what}"):
        assert_ranks_agree([usual, odd, usual])


def test_equal_nans_and_empty_results_agree():
    nan = torch.tensor([float("nan")])
    assert_ranks_agree([nan, nan.clone()])
    assert_ranks_agree([float("nan"), float("nan")])
    assert_ranks_agree([torch.empty(0), torch.empty(0)])
    assert_ranks_agree([None, None])


def test_a_result_that_does_not_pickle_is_the_fault_of_its_rank(real_ranks):
    with pytest.raises(RanksFailedError, match=r"rank 1 raised: .*pickle"):
        real_ranks(2).run(give_lambda, timeout_s=LONG_S)


def test_a_case_that_no_rank_can_load_is_refused(ranks):
    def inner(context: RankContext) -> None: ...

    for case in (inner, lambda context: None):
        with pytest.raises(InvalidValueError, match="top level"):
            ranks(2).run(case)


def test_close_leaves_no_process_and_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pool = RealPool(2)
    pids = pool.run(process_id)
    assert all(is_running(pid) for pid in pids)
    assert list(tmp_path.glob("ranks-*"))
    pool.close()
    assert pool.pids == ()
    assert not any(is_running(pid) for pid in pids)
    assert list(tmp_path.glob("ranks-*")) == []


def test_an_interrupted_run_kills_the_ranks(real_ranks, monkeypatch):
    pool = real_ranks(2)
    pool.run(process_id)
    old = pool.pids

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tests.ranks.real.wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            pool.run(misbehave, "hang", 0)
    assert pool.pids == ()
    assert not any(is_running(pid) for pid in old)


def test_ranks_end_when_their_parent_is_killed_even_if_they_hang(tmp_path):
    script = (
        "import sys; from tests.ranks.case import CaseReference as Case;"
        "from tests.ranks.real import RealPool; pool = RealPool(2);"
        "print(*pool.run(Case(*sys.argv[1:3], 'process_id').load()), flush=True);"
        "pool.run(Case(*sys.argv[1:3], 'spin_forever').load())"
    )
    reference = CaseReference.of(spin_forever)
    parent = subprocess.Popen(
        [sys.executable, "-c", script, reference.module, reference.path],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    server = state_and_parent(pids[0])[1]
    assert server not in (1, parent.pid)
    pids.append(server)
    assert all(is_running(pid) for pid in pids)
    time.sleep(0.5)  # let them begin to hang, one in Python and one in gloo
    parent.kill()
    parent.communicate()
    until_s = time.monotonic() + 20.0
    while any(is_running(pid) for pid in pids) and time.monotonic() < until_s:
        time.sleep(0.05)
    left = [pid for pid in pids if is_running(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []
    assert list(tmp_path.glob("ranks-*")) == []
