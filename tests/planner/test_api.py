"""The front door: deterministic plans, limits, errors, the plan that comes back."""

import pytest

from shardwise.ir.config_files import load_machine
from shardwise.ir.errors import InfeasibleError, InvalidValueError, MismatchError
from shardwise.ir.lengths_file import write_lengths
from shardwise.ir.plan import Plan
from shardwise.planner.api import plan
from tests.support.planning import SOME, TRAINING, machine, traced_hand_model


def made(**changes):
    arguments = {
        "cluster": machine(2), "lengths": SOME, "tokens_per_step": 8192, "training": TRAINING,
    } | changes  # fmt: skip
    return plan(traced_hand_model(), **arguments)


def test_the_same_input_gives_the_same_plan():
    one, two = made(), made()
    assert one.digest() == two.digest()
    assert Plan.parse(str(one)) == one
    assert one.bound_s <= one.step_s
    assert one.gap == 0.0


def test_files_and_values_give_the_same_plan(tmp_path):
    path = tmp_path / "lengths.csv"
    write_lengths(SOME, path)
    from_files = made(cluster="configs/clusters/local-2.toml", lengths=path)
    values = made(cluster="configs/clusters/local-2.toml")
    assert from_files.buckets == values.buckets
    assert from_files.priced_for.cluster.name == "local-2"


def test_a_limit_is_kept_and_named():
    roomy = made()
    most = max(bucket.largest_peak_bytes() for bucket in roomy.buckets)
    limit = int(most) - 1
    tight = made(memory_limit_bytes_per_rank=limit)
    assert max(bucket.largest_peak_bytes() for bucket in tight.buckets) <= limit
    assert tight.step_s >= roomy.step_s
    assert tight.priced_for.memory_limit_bytes_per_rank == limit


def test_errors():
    with pytest.raises(InfeasibleError, match=r"bytes short; nearest fixes"):
        made(memory_limit_bytes_per_rank=1)
    for bad in (0, -1, 10**15):
        with pytest.raises(InvalidValueError, match="memory limit"):
            made(memory_limit_bytes_per_rank=bad)
    with pytest.raises(InvalidValueError, match="tokens_per_step"):
        made(tokens_per_step=0)
    cluster, _, software = machine(2)
    _, other, _ = load_machine("configs/clusters/h100-8x8.toml")
    with pytest.raises(MismatchError):
        made(cluster=(cluster, other, software))


def test_the_exact_shortfall_makes_it_feasible():
    with pytest.raises(InfeasibleError) as caught:
        made(memory_limit_bytes_per_rank=1)
    text = str(caught.value)
    short = int(text.partition(" bytes short")[0].rpartition(" ")[2])
    assert made(memory_limit_bytes_per_rank=1 + short).buckets
    with pytest.raises(InfeasibleError):
        made(memory_limit_bytes_per_rank=short)


def test_one_rank_plans_too():
    alone = made(cluster=machine(1))
    assert str(alone.mesh) == "1"
    assert alone.groups == ()
    assert alone.free_switching_price == pytest.approx(1.0)
