"""Stated saved bytes are those that autograd reports, operator by operator; strides are torch's."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shardwise.ir.expression import evaluate
from shardwise.ir.strides import contiguous, is_contiguous, is_dense, pointwise, viewed
from shardwise.ir.trace import trace
from tests.models import hand_written
from tests.models.hand_written import Maker
from tests.support.traced import (
    MODELS,
    saved_by_operator,
    text_batch,
    traced_encoder_decoder,
    traced_model,
    values_of,
)

# strides


@st.composite
def arranged(draw, largest=4):
    """A tensor of distinct dims, permuted, cut and expanded."""
    shape = draw(st.lists(st.integers(1, largest), min_size=1, max_size=4))
    tensor = torch.arange(2 ** len(shape) * torch.Size(shape).numel()).reshape(
        [2 * size for size in shape]
    )
    for dim, size in enumerate(shape):
        if draw(st.booleans()):
            tensor = tensor.narrow(dim, 0, size)
    tensor = tensor.permute(draw(st.permutations(range(len(shape)))))
    if draw(st.booleans()):
        tensor = tensor.unsqueeze(draw(st.integers(0, tensor.dim())))
    if draw(st.integers(0, 3)) == 0:
        tensor = tensor.unsqueeze(0).expand(3, *tensor.shape)
    return tensor


@settings(max_examples=300)
@given(arranged(), st.data())
def test_a_reshape_is_a_view_where_torch_makes_one(tensor, data):
    sizes = [size for size in tensor.shape if size != 1]
    new: list[int] = []
    while sizes:
        count = data.draw(st.integers(1, len(sizes)))
        merged = torch.Size(sizes[:count]).numel()
        sizes = sizes[count:]
        factor = data.draw(st.sampled_from([d for d in range(1, merged + 1) if merged % d == 0]))
        new += [factor, merged // factor]
    found = viewed(tuple(tensor.shape), tensor.stride(), tuple(new))
    try:
        wanted = tensor.view(new).stride()
    except RuntimeError:
        wanted = None
    assert (found is None) == (wanted is None)
    if wanted is not None:
        assert all(a == b for a, b, size in zip(found, wanted, new, strict=True) if size != 1)


@given(arranged())
def test_contiguous_and_dense(tensor):
    shape, strides = tuple(tensor.shape), tensor.stride()
    assert is_contiguous(shape, strides) == tensor.is_contiguous()
    assert contiguous(shape) == torch.empty(shape).stride()
    assert is_dense(shape, strides) == torch.ops.aten.is_non_overlapping_and_dense(tensor)


@given(arranged(), st.data())
def test_pointwise_results_are_laid_out_as_by_torch(tensor, data):
    other = tensor
    kind = data.draw(st.sampled_from(["alone", "same", "row", "permuted"]))
    operands = [tensor]
    if kind == "same":
        operands.append(tensor.clone(memory_format=torch.contiguous_format))
    elif kind == "row":
        operands.append(torch.arange(tensor.shape[-1]))
    elif kind == "permuted":
        other = torch.zeros(tensor.shape[::-1], dtype=tensor.dtype).permute(
            *range(tensor.dim() - 1, -1, -1)
        )
        operands.append(other)
    if data.draw(st.booleans()):
        operands.reverse()
    result = operands[0].neg() if len(operands) == 1 else operands[0] + operands[1]
    shape = tuple(result.shape)
    found = pointwise(shape, [(tuple(o.shape), o.stride()) for o in operands])
    assume(all(size > 0 for size in shape))
    wanted = result.stride()
    assert all(a == b for a, b, size in zip(found, wanted, shape, strict=True) if size != 1)


# saved bytes


def compare(model, traced, batch, sizes):
    """Per operator; returns the total."""
    staying = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    staying |= {t.untyped_storage().data_ptr() for t in traced.constants.values()}
    counted = saved_by_operator(traced.graph, values_of(model, traced, batch), staying)
    stated = {o.name: evaluate(o.saved_bytes, sizes) for o in traced.graph.operators}
    wrong = {
        name: (traced.graph.operator(name).kind, stated[name], counted[name])
        for name in stated
        if stated[name] != counted[name]
    }
    assert not wrong
    return sum(stated.values())


def check(model, inputs, dims, batch, sizes):
    return compare(model, trace(model, inputs, dims=dims), batch, sizes)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float64) for name in MODELS),
        ("llama", torch.bfloat16),
        ("gpt2", torch.float32),
    ],
)
def test_models(name, dtype):
    model, traced = traced_model(name, dtype)
    for rows, length in ((2, 12), (3, 25)):
        sizes = {"B": rows, "S": length}
        assert compare(model, traced, text_batch(rows, length), sizes) > 10_000


def test_two_lengths_and_a_trained_bias_of_attention():
    model, traced = traced_encoder_decoder()
    batch = {
        "input_ids": text_batch(2, 12)["input_ids"], "labels": text_batch(2, 7)["labels"]
    }  # fmt: skip
    assert compare(model, traced, batch, {"B": 2, "S_src": 12, "S_tgt": 7}) > 0


def test_a_model_without_lengths():
    inputs = {"x": "float32[B, 8]", "target": "float32[B, 4]"}
    batch = {"x": torch.randn(3, 8), "target": torch.randn(3, 4)}
    check(hand_written.MLP(), inputs, {"B": (1, 9)}, batch, {"B": 3})


def _heads(x):
    return x.view(x.shape[0], x.shape[1], 2, 4).transpose(1, 2)


OPERATORS = {
    "views": lambda s, x: (_heads(x * s.scale) * 2).pow(2),
    "copies": lambda s, x: _heads(x * s.scale).reshape(-1, 8).exp() + _heads(x).reshape(-1, 8),
    "saved view": lambda s, x: (x * s.scale)[:, 1:, :4].square(),
    "one storage twice": lambda s, x: (lambda y: y.exp() * y.tanh())(x * s.scale),
    "matmul": lambda s, x: _heads(x * s.scale) @ _heads(x * s.scale).transpose(-1, -2),
    "matmul by a matrix": lambda s, x: (x * s.scale) @ s.scale.diag(),
    "broadcast matmul": lambda s, x: (x * s.scale).unsqueeze(1) @ s.scale.diag().expand(2, 8, 8),
    "linear of a transpose": lambda s, x: F.linear(
        (x * s.scale).transpose(0, 1), s.scale.diag()
    ),
    "linear by a constant": lambda s, x: F.linear(x * s.scale, torch.ones(4, 8, dtype=x.dtype)),
    "division": lambda s, x: (x * s.scale) / (1 + (x * s.scale).square()) / 3,
    "divided by a constant": lambda s, x: (x * s.scale) / (1 + x.square()),
    "where": lambda s, x: torch.where(x > 0, x * s.scale, 0.0).masked_fill(x < -1, 0.0),
    "softmax": lambda s, x: (x * s.scale).softmax(-1).log_softmax(1),
    "activations": lambda s, x: F.gelu(x * s.scale) + F.relu(x * s.scale) + F.silu(x * s.scale),
    "sigmoid and sqrt": lambda s, x: torch.sigmoid(x * s.scale).sqrt().rsqrt(),
    "trigonometry": lambda s, x: (x * s.scale).cos() + (x * s.scale).sin().abs().log1p(),
    "norms": lambda s, x: F.layer_norm(x * s.scale, (8,)) + F.layer_norm(x, (8,), s.scale),
    "rms": lambda s, x: F.rms_norm(x * s.scale, (8,), s.scale),
    "cat, pad, roll": lambda s, x: F.pad(torch.cat([x * s.scale, x], 1), (0, 1)).roll(1, 1),
    "split": lambda s, x: (lambda a, b: a * b)(*(x * s.scale).split(4, -1)),
    "gather": lambda s, x: (x * s.scale).gather(2, (x > 0).long()),
    "index": lambda s, x: (x * s.scale)[:, torch.tensor([0, 1])],
    "reductions": lambda s, x: (x * s.scale).sum(1) + (x * s.scale).mean(1) + s.scale.var(),
    "clamp": lambda s, x: (x * s.scale).clamp(-1, 1).clamp_min(0),
    "masked attention": lambda s, x: F.scaled_dot_product_attention(
        _heads(x * s.scale), _heads(x * s.scale), _heads(x), attn_mask=(x[:, None, None, :, 0] > 0)
    ),
    "attention of other widths": lambda s, x: F.scaled_dot_product_attention(
        _heads(x * s.scale), _heads(x * s.scale), _heads(x * s.scale)[..., :3].contiguous()
    ),
    "attention with a trained bias": lambda s, x: F.scaled_dot_product_attention(
        _heads(x * s.scale), _heads(x), _heads(x),
        attn_mask=s.scale[:1] * (x @ x.transpose(1, 2))[:, None],
    ),
    "dropout": lambda s, x: F.dropout(x * s.scale, 0.25),
    "convolution": lambda s, x: F.conv1d(
        (x * s.scale).transpose(1, 2), s.scale.expand(8, 8)[..., None].contiguous()
    ),
    "detached": lambda s, x: (x * s.scale) * (x * s.scale).detach().exp(),
    "cast": lambda s, x: (x * s.scale).double().square().float().exp(),
}  # fmt: skip


NARROW = ("norms", "rms", "cast", "dropout", "linear of a transpose", *(
    name for name in OPERATORS if "attention" in name
))  # fmt: skip
"""Snippets whose kernels may save something else in bfloat16."""


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((n, torch.float32) for n in OPERATORS), *((n, torch.bfloat16) for n in NARROW)],
)
def test_operators(name, dtype):
    model = Maker(lambda s, x: OPERATORS[name](s, x).float().square().mean()).to(dtype)
    batch = {"x": torch.randn(3, 6, 8, dtype=dtype)}
    shape = f"{str(dtype).removeprefix('torch.')}[B, S, 8]"
    check(model, {"x": shape}, {"B": (1, 9), "S": (4, 64)}, batch, {"B": 3, "S": 6})
