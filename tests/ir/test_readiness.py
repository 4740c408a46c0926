"""Models that would train wrong in silence are refused in one line."""

import pytest
import torch
from torch import nn

from shardwise.ir.errors import MismatchError, UnsupportedError
from shardwise.ir.layout import Layout
from shardwise.ir.localise import localise
from shardwise.ir.mesh import Mesh
from shardwise.ir.parameter_choice import Lifetime, ParameterChoice
from shardwise.ir.rest import check_trained, rests
from shardwise.ir.strategy import Role, Strategy
from shardwise.ir.trace import trace
from shardwise.ir.training import TrainingSpec

SHAPE = {"x": "float64[B, S, 8]"}
DIMS = {"B": (1, 64), "S": (1, 64)}


class Model(nn.Module):
    """A layer and what `change` makes of its result."""

    def __init__(self, change):
        super().__init__()
        self.linear = nn.Linear(8, 8, dtype=torch.float64)
        self.other = nn.Linear(8, 8, dtype=torch.float64)
        self.register_buffer("average", torch.ones(8, dtype=torch.float64))
        self.change = change

    def forward(self, x):
        return self.change(self, self.other(self.linear(x)), x)


def traced(change, **prepare):
    model = Model(change)
    for name in prepare.get("frozen", ()):
        model.get_parameter(name).requires_grad_(False)
    return trace(model, SHAPE, dims=DIMS)


def mean(model, y, x):
    return y.square().mean()


def average(model, y, x):
    model.average.mul_(0.9).add_(0.1 * x.mean((0, 1)))
    return (y - model.average).square().mean()


def test_a_frozen_parameter_is_not_trained_in_silence():
    graph = traced(mean, frozen=["linear.weight"]).graph
    with pytest.raises(UnsupportedError, match=r"linear\.weight \(float64\) is frozen"):
        check_trained(graph, TrainingSpec())
    check_trained(graph, TrainingSpec(trainable=("*.bias", "other.*")))
    check_trained(traced(mean).graph, TrainingSpec())


def test_a_recipe_that_trains_nothing_is_refused():
    with pytest.raises(UnsupportedError, match="matches none of the model's parameters"):
        check_trained(traced(mean).graph, TrainingSpec(trainable=("nothing*",)))


def test_a_buffer_that_the_forward_writes_is_refused():
    with pytest.raises(UnsupportedError, match="the forward writes the buffer average"):
        check_trained(traced(average).graph, TrainingSpec())


@pytest.mark.parametrize("draw", [torch.randn_like, torch.rand_like, torch.bernoulli])
def test_random_numbers_in_the_forward_are_refused(draw):
    def noisy(model, y, x):
        return (y + draw(x.sigmoid())).square().mean()

    found = traced(noisy)
    mesh = Mesh.parse("x0=2@loopback")
    strategy = Strategy("data", (("x0", Role.BATCH),), (), ())
    with pytest.raises(UnsupportedError, match="draws random numbers"):
        localise(found.graph, found.units, mesh, [strategy] * len(found.units))


@pytest.mark.parametrize(
    ("divisor", "says"),
    [
        (lambda model, x: x.gt(0).sum().double().sqrt(), "sqrt"),
        (lambda model, x: x.max(), "max"),
        (lambda model, x: x.gt(0).double().mean(), "mean"),
        (lambda model, x: model.average[0], "select"),
    ],
)
def test_a_loss_over_what_does_not_add_up_is_refused(divisor, says):
    with pytest.raises(UnsupportedError, match=f"{says}.*no sum over documents"):
        traced(lambda model, y, x: y.square().sum() / divisor(model, x))


@pytest.mark.parametrize(
    "divisor",
    [
        lambda x: x.gt(0).sum(),
        lambda x: x.gt(0).double().sum(),
        lambda x: x.gt(0).sum().clamp(min=1),
        lambda x: x.gt(0).sum().double().clamp_min(1e-6),
    ],
)
def test_a_loss_over_a_count_keeps_the_bare_count_as_its_weight(divisor):
    graph = traced(lambda model, y, x: y.square().sum() / divisor(x)).graph
    kinds = {operator.kind for operator in graph.operators}
    assert not kinds & {"aten.clamp.default", "aten.clamp_min.default"}
    assert graph.producer(graph.outputs[1]).kind in ("aten.sum.default", "aten.to.dtype")


def test_a_layout_over_a_dim_that_a_parameter_lacks_is_named():
    graph = traced(mean).graph
    choices = [
        ParameterChoice(item.name, Layout.parse("x0:S(1)"), Layout(()), Lifetime.STEP)
        for item in graph.parameters
    ]
    with pytest.raises(MismatchError, match=r"cuts a dim that shape \(8,\) lacks"):
        rests(graph, choices)


def test_a_model_is_the_same_for_however_long_documents_it_was_traced():
    model = Model(mean)
    short, long = (
        trace(model, SHAPE, dims={"B": (1, 64), "S": (1, longest)}).fingerprint
        for longest in (64, 1001)
    )
    assert short == long
