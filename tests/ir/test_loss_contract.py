"""(loss_sum, weight): their ratio is the model's loss, and both add up over documents."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from shardwise.ir.errors import UnsupportedError
from shardwise.ir.expression import symbol
from shardwise.ir.trace import trace
from shardwise.runtime.interpreter import interpret
from tests.models.hand_written import Maker
from tests.support.traced import differences, values_of

DIMS = {"B": (1, 9), "S": (1, 64)}


def _labels(x):
    labels = (x[..., 0] * 3).long().remainder(8)
    return labels.masked_fill(x[..., 1] > 0.5, -100)


def _rows(x):
    return x.reshape(-1, 8), _labels(x).reshape(-1)


def cross_entropy(self, x):
    return F.cross_entropy(*_rows(x * self.scale))


def columns(self, x):
    return F.cross_entropy((x * self.scale).transpose(1, 2), _labels(x))


def smoothed(self, x):
    return F.cross_entropy(*_rows(x * self.scale), label_smoothing=0.1)


def ignoring(self, x):
    logits, labels = _rows(x * self.scale)
    return F.cross_entropy(logits, labels.clamp_min(0), ignore_index=0)


def scaled(self, x):
    return (-0.5 * F.cross_entropy(*_rows(x * self.scale)).double() / 4).neg()


def likelihood(self, x):
    logits, labels = _rows(x * self.scale)
    return F.nll_loss(logits.log_softmax(-1), labels)


def probabilities(self, x):
    return F.cross_entropy((x * self.scale).reshape(-1, 8), x.softmax(-1).reshape(-1, 8))


def squared(self, x):
    return F.mse_loss(x * self.scale, x + 1)


def absolute(self, x):
    return F.l1_loss(x * self.scale, x + 1)


def huber(self, x):
    return F.smooth_l1_loss(x * self.scale, x + 1)


def binary(self, x):
    return F.binary_cross_entropy_with_logits(x * self.scale, (x > 0).to(x.dtype))


def binary_weighted(self, x):
    weight = torch.full((8,), 2.0, dtype=x.dtype)
    return F.binary_cross_entropy_with_logits(
        x * self.scale, (x > 0).to(x.dtype), pos_weight=weight
    )


def mean(self, x):
    return (x * self.scale).pow(2).mean()


def mean_over_dims(self, x):
    return (x * self.scale).pow(2).mean(dim=(0, 1, 2))


def masked_ratio(self, x):
    mask = (x[..., 0] > -1).to(x.dtype)
    each = (x * self.scale).pow(2).sum(-1)
    return (each * mask).sum() / mask.sum()


def per_document(self, x):
    return (x * self.scale).pow(2).sum() / x.shape[0]


def summed_cross_entropy_ratio(self, x):
    logits, labels = _rows(x * self.scale)
    return F.cross_entropy(logits, labels, reduction="sum") / (labels != -100).sum()


RECOGNISED = [
    cross_entropy, columns, smoothed, ignoring, scaled, likelihood, probabilities, squared,
    absolute, huber, binary, binary_weighted, mean, mean_over_dims, masked_ratio, per_document,
    summed_cross_entropy_ratio,
]  # fmt: skip


@pytest.mark.parametrize("loss", RECOGNISED, ids=lambda loss: loss.__name__)
def test_recognised(loss):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Maker(loss).double()
    traced = trace(model, {"x": "float64[B, S, 8]"}, dims=DIMS)
    graph = traced.graph
    assert len(graph.outputs) == 2
    assert [graph.spec(ref).shape for ref in graph.outputs] == [(), ()]
    assert not {o.kind for o in graph.operators} & {"aten.mean.default", "aten.mean.dim"}
    for rows, length in ((1, 5), (2, 8), (3, 1)):
        x = torch.randn(rows, length, 8).double()
        if (x[..., 1] > 0.5).all():
            x[0, 0, 1] = 0
        difference, gradient = differences(model, traced, {"x": x})
        assert difference <= 1e-13 and gradient <= 1e-13
        whole = interpret(graph, values_of(model, traced, {"x": x}))
        parts = [
            interpret(graph, values_of(model, traced, {"x": x[i : i + 1]})) for i in range(rows)
        ]
        for one, many in zip(whole, zip(*parts, strict=True), strict=True):
            torch.testing.assert_close(one, sum(many), rtol=1e-12, atol=1e-12)


def test_documents_without_a_target_are_zero_not_nan():
    model = Maker(lambda self, x: F.cross_entropy((x * self.scale).reshape(-1, 8), _none(x)))
    traced = trace(model, {"x": "float32[B, S, 8]"}, dims=DIMS)
    total, weight = interpret(traced.graph, values_of(model, traced, {"x": torch.randn(2, 3, 8)}))
    assert (total.item(), weight.item()) == (0.0, 0)
    assert torch.equal(torch.autograd.grad(total, model.scale)[0], torch.zeros(8))


def _none(x):
    return torch.full((x.shape[0] * x.shape[1],), -100)


def test_weights_are_counts():
    graph = trace(Maker(squared), {"x": "float32[B, S, 8]"}, dims=DIMS).graph
    (count,) = (o for o in graph.operators if o.name == graph.outputs[1].name)
    assert count.kind == "aten.full.default"
    assert count.args == ((), 8 * symbol("B") * symbol("S"))
    graph = trace(Maker(cross_entropy), {"x": "float32[B, S, 8]"}, dims=DIMS).graph
    weight = graph.operator(graph.outputs[1].name)
    assert weight.kind == "aten.sum.default" and weight.outputs[0].dtype == "int64"


# refused


def summed(self, x):
    return F.cross_entropy(*_rows(x * self.scale), reduction="sum")


def summed_squares(self, x):
    return F.mse_loss(x * self.scale, x, reduction="sum")


def class_weights(self, x):
    weight = torch.ones(8, dtype=x.dtype)
    return F.cross_entropy(*_rows(x * self.scale), weight=weight)


def two_losses(self, x):
    return F.cross_entropy(*_rows(x * self.scale)) + 0.1 * (x * self.scale).pow(2).mean()


def deviation(self, x):
    return (x * self.scale).std()


def by_a_number(self, x):
    return (x * self.scale).pow(2).sum() / 1024


def by_the_length(self, x):
    return (x * self.scale).pow(2).sum() / x.shape[1]


def by_the_square_of_the_batch(self, x):
    return (x * self.scale).pow(2).sum() / x.shape[0] ** 2


def by_a_trained_weight(self, x):
    return (x * self.scale).pow(2).sum() / self.scale.sum()


def of_the_largest(self, x):
    return (x * self.scale).amax()


def mean_over_features_of_the_scale(self, x):
    return self.scale.pow(2).mean() + 0 * 0


def no_scalar(self, x):
    return x * self.scale


def without_parameters(self, x):
    return x.pow(2).mean()


REFUSED = {
    summed: "says nothing of their number", summed_squares: "says nothing of their number",
    class_weights: "weights of classes", two_losses: "aten.add.Tensor",
    deviation: "aten.std", by_a_number: "does not count documents",
    by_the_length: "does not count documents", by_a_trained_weight: "aten.div.Tensor",
    by_the_square_of_the_batch: "does not count documents",
    of_the_largest: "aten.amax", mean_over_features_of_the_scale: "aten.",
    no_scalar: "where a scalar loss is needed", without_parameters: "trainable parameter",
}  # fmt: skip


@pytest.mark.parametrize("loss", REFUSED, ids=lambda loss: loss.__name__)
def test_refused(loss):
    with pytest.raises(UnsupportedError) as caught:
        trace(Maker(loss).double(), {"x": "float64[B, S, 8]"}, dims=DIMS)
    message = str(caught.value)
    assert REFUSED[loss] in message and "\n" not in message
    remedies = ("pass loss=", "pass the targets", "compute it from inputs")
    assert any(remedy in message for remedy in remedies)


def test_a_weight_of_the_users_own():
    def loss(outputs, inputs):
        return outputs.sum(), inputs["input"].shape[0]

    traced = trace(nn.Linear(4, 2), {"input": "float32[B, 4]"}, dims={"B": (1, 9)}, loss=loss)
    batch = {"input": torch.randn(3, 4)}
    model = nn.Linear(4, 2)
    _, weight = interpret(traced.graph, values_of(model, traced, batch))
    assert weight.item() == 3

    with pytest.raises(UnsupportedError, match="depends on parameters"):
        trace(
            nn.Linear(4, 2), {"input": "float32[B, 4]"}, dims={"B": (1, 9)},
            loss=lambda outputs, inputs: (outputs.sum(), outputs.mean()),
        )  # fmt: skip
