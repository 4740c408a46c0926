"""Weights that live for a use: freed after forward, gathered again once, dropped when done."""

import ctypes
import gc
import weakref

import torch
import torch.nn.functional as F  # noqa: N812

from shardwise.ir.program import Use
from shardwise.ir.tensor import TensorSpec
from shardwise.ir.value_layout import ValueLayout
from shardwise.runtime.regather import Regather

USE = Use("w__use1", "w", TensorSpec((3, 4), "float64"), ValueLayout.parse("R"))
OTHER = Use("v__use1", "v", TensorSpec((3, 4), "float64"), ValueLayout.parse("R"))
WEIGHTS = {
    "w": torch.arange(12.0, dtype=torch.float64).reshape(3, 4),
    "v": -torch.arange(12.0, dtype=torch.float64).reshape(3, 4),
}


class Gathers:
    """Makes copies and counts them; knows which are still alive."""

    def __init__(self):
        self.made, self.alive = [], []

    def __call__(self, use):
        copy = WEIGHTS[use.parameter].clone()
        self.made.append(use.parameter)
        self.alive.append(weakref.ref(copy))
        return copy

    def living(self):
        gc.collect()
        return sum(ref() is not None for ref in self.alive)


def run(function, gathers):
    """Forward under regather; returns the loss, the inputs and the regather."""
    regather = Regather(gathers)
    x = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)

    def forward():
        copies = [gathers(use) for use in (USE, OTHER)]
        for use, copy in zip((USE, OTHER), copies, strict=True):
            regather.watch(use, copy)
        return function(x, *copies)

    with regather.saving():
        loss = forward().sum()
    return loss, x, regather


def test_a_saved_weight_is_freed_and_gathered_once_for_all_that_saved_it():
    gathers = Gathers()
    loss, x, regather = run(lambda x, w, v: F.linear(x, w) + F.linear(x.exp(), w), gathers)
    assert gathers.living() == 0 and gathers.made == ["w", "v"]
    loss.backward()
    assert gathers.made == ["w", "v", "w"]
    w = WEIGHTS["w"]
    assert torch.allclose(x.grad, w.sum(0) + w.sum(0) * x.detach().exp())
    assert gathers.living() == 1
    regather.drop(USE)
    assert gathers.living() == 0


def test_views_of_a_weight_are_found_where_they_lie():
    gathers = Gathers()
    loss, x, _ = run(lambda x, w, v: (x[:, :3] @ w[:, 1:]) * v.t()[1:, 0], gathers)
    assert gathers.living() == 0
    loss.backward()
    wanted = (WEIGHTS["w"][:, 1:] * WEIGHTS["v"].t()[1:, 0]).sum(1)
    assert torch.allclose(x.grad[:, :3], wanted.expand(2, 3))
    assert sorted(gathers.made) == ["v", "v", "w", "w"]


def test_other_tensors_are_saved_as_they_are():
    gathers = Gathers()
    loss, x, _ = run(lambda x, w, v: (x * x).exp(), gathers)
    loss.backward()
    assert gathers.made == ["w", "v"]
    assert torch.allclose(x.grad, 2 * x.detach() * x.detach().square().exp())


def test_the_address_of_a_copy_is_forgotten_with_the_copy():
    """A new tensor where a freed copy lay must not be taken for it."""
    regather = Regather(lambda use: WEIGHTS[use.parameter])
    memory = (ctypes.c_float * 12)()
    copy = torch.frombuffer(memory, dtype=torch.float32)
    view = copy.view(3, 4).t()
    regather.watch(USE, copy)
    assert not isinstance(regather._pack(view), torch.Tensor)
    del copy
    assert not isinstance(regather._pack(view), torch.Tensor)  # a view keeps it alive
    del view
    other = torch.frombuffer(memory, dtype=torch.float32)
    assert regather._pack(other) is other
