"""Checkpoints on one rank: what is saved comes back, and what does not fit is refused."""

import json

import pytest
import torch

from shardwise.ir.errors import FileFormatError, MismatchError
from shardwise.ir.training import TrainingSpec
from shardwise.runtime import checkpoint
from shardwise.runtime.checkpoint import (
    PLACE,
    load_checkpoint,
    read_masters,
    read_place,
    save_checkpoint,
)
from shardwise.runtime.launch import restore, save
from shardwise.runtime.train import make_optimizer
from tests.support.tiny_decoder import plan_of, write_job
from tests.support.training_rig import alone, losses, trainer_of

SGD = ("steps = 4", 'steps = 4\noptimizer = "sgd"')


def trainer(folder, changes=(), plan=None):
    folder.mkdir(exist_ok=True)
    return trainer_of(alone(), write_job(folder, changes), plan or plan_of("1"))


def test_resumed_is_uninterrupted(tmp_path):
    whole = trainer(tmp_path)
    expected = losses(whole, 4)
    first = trainer(tmp_path)
    assert losses(first, 2) == expected[:2]
    save(first)
    folder = tmp_path / "run" / "step-2"
    assert first.said == [f"saved {folder}"]
    again = trainer(tmp_path)
    losses(again, 1)  # what it holds before is overwritten
    restore(again, folder)
    assert again.step == 2
    assert losses(again, 2) == expected[2:]
    for master in again.program.parameters():
        state, other = again.optimizer.state[master], set(again.optimizer.state[master])
        assert other == {"step", "exp_avg", "exp_avg_sq"} and float(state["step"]) == 4
    for (name, one), (_, two) in zip(
        again.program.named_parameters(), whole.program.named_parameters(), strict=True
    ):
        assert torch.equal(one.data, two.data), name
    masters = read_masters(folder)
    assert masters.keys() == dict(first.program.named_parameters()).keys()
    for name, master in first.program.named_parameters():
        assert torch.equal(masters[name], master.data)


def test_a_checkpoint_before_the_first_step(tmp_path):
    one = trainer(tmp_path)
    save(one)
    expected = losses(one, 2)
    two = trainer(tmp_path)
    losses(two, 1)
    restore(two, tmp_path / "run" / "step-0")
    assert two.step == 0 and losses(two, 2) == expected


def test_loading_writes_into_the_tensors_in_use(tmp_path):
    one = trainer(tmp_path)
    losses(one, 1)
    save(one)
    losses(one, 1)
    masters = list(one.program.parameters())
    kept = [(m.data.data_ptr(), one.optimizer.state[m]["exp_avg"].data_ptr()) for m in masters]
    restore(one, tmp_path / "run" / "step-1")
    for master, pointers in zip(masters, kept, strict=True):
        state = one.optimizer.state[master]
        assert (master.data.data_ptr(), state["exp_avg"].data_ptr()) == pointers
        assert float(state["step"]) == 1


def test_sgd_and_frozen_parameters_have_no_state(tmp_path):
    spec = TrainingSpec("sgd")
    one = trainer(tmp_path, [SGD], plan_of("1", training=spec))
    losses(one, 1)
    save(one)
    adam = trainer(tmp_path / "adam")
    frozen = next(adam.program.parameters()).requires_grad_(False)
    sgd = make_optimizer(one.job, one.program)
    state = checkpoint._state(one.program, sgd)
    assert state["master"].keys() == masters_of(one).keys()
    assert state["optimizer"] == {} and len(sgd.state) == 0
    state = checkpoint._state(adam.program, adam.optimizer)
    assert state["master"].keys() == masters_of(adam).keys()
    assert len(state["optimizer"]) == len(adam.optimizer.state) == len(masters_of(adam)) - 1
    assert frozen not in adam.optimizer.state
    with pytest.raises(MismatchError, match=r"lacks optimizer\.\S+; load it with the model and"):
        load_checkpoint(tmp_path / "run" / "step-1", adam.program, adam.optimizer)


def masters_of(trainer):
    return dict(trainer.program.named_parameters())


def test_place_is_removed_first_and_written_last(tmp_path, monkeypatch):
    one = trainer(tmp_path)
    folder = tmp_path / "c"
    save_checkpoint(folder, one.program, one.optimizer, {"step": 0})
    assert read_place(folder) == {"step": 0, "sections": {}}
    seen = []

    def fails(*args, **kwargs):
        seen.append((folder / PLACE).exists())
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "dcp_save", fails)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(folder, one.program, one.optimizer, {"step": 1})
    assert seen == [False] and not list(folder.glob("place*"))
    with pytest.raises(FileFormatError, match="no complete checkpoint"):
        read_place(folder)


@pytest.mark.parametrize("text", [None, "", "{", "[]", "3"])
def test_incomplete_folders(tmp_path, text):
    if text is not None:
        (tmp_path / PLACE).write_text(text)
    with pytest.raises(FileFormatError, match=r"no complete checkpoint .*saved step"):
        read_place(tmp_path)


@pytest.mark.parametrize("damage", ["metadata", "data", "no metadata"])
def test_damaged_files_give_one_line(tmp_path, damage):
    one = trainer(tmp_path)
    save(one)
    folder = tmp_path / "run" / "step-0"
    if damage == "no metadata":
        (folder / ".metadata").unlink()
    elif damage == "metadata":
        (folder / ".metadata").write_bytes(b"nothing")
    else:
        for path in folder.glob("*.distcp"):
            path.write_bytes(path.read_bytes()[:100])
    for read in (lambda: restore(one, folder), lambda: read_masters(folder)):
        with pytest.raises(FileFormatError) as caught:
            read()
        assert str(caught.value).startswith(f"{folder}: ") and "\n" not in str(caught.value)


def test_another_shape_is_named(tmp_path):
    one = trainer(tmp_path)
    save(one)
    two = trainer(tmp_path)
    name = "layers.0.up.weight"
    two.program._masters[name] = torch.nn.Parameter(torch.zeros(3, 5))
    with pytest.raises(MismatchError, match=rf"{name} was saved with shape \(64, 32\).*\(3, 5\)"):
        load_checkpoint(tmp_path / "run" / "step-0", two.program, two.optimizer)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("model", "0" * 64, "another model"),
        ("corpus", "0" * 64, "another corpus"),
        ("documents", {"seed": 1}, "another seed"),
    ],
)
def test_another_job_is_refused_before_anything_is_read(tmp_path, key, value, says):
    one = trainer(tmp_path)
    losses(one, 1)
    save(one)
    path = tmp_path / "run" / "step-1" / PLACE
    place = json.loads(path.read_text())
    path.write_text(json.dumps({**place, key: value}))
    two = trainer(tmp_path)
    before = {name: master.data.clone() for name, master in masters_of(two).items()}
    with pytest.raises(MismatchError, match=says) as caught:
        restore(two, path.parent)
    assert "\n" not in str(caught.value)
    assert two.step == 0
    for name, master in masters_of(two).items():
        assert torch.equal(master.data, before[name])


def test_another_seed_is_another_job(tmp_path):
    one = trainer(tmp_path)
    save(one)
    two = trainer(tmp_path / "b", [("max_length = 64", "max_length = 64\nseed = 9")])
    with pytest.raises(MismatchError, match="another seed"):
        restore(two, tmp_path / "run" / "step-0")
