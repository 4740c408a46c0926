"""TrainingSpec: checks and text; the optimizer table against torch's own optimizers."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.errors import InvalidValueError, ParseError, ShardwiseError
from shardwise.ir.training import OPTIMIZERS, TrainingSpec

SPEC = TrainingSpec(
    "sgd_momentum", compute_dtype="bfloat16", trainable=("layers.*", "a b,c"), clip_norm=0.5
)
TEXT = (
    "sgd_momentum master=float32 compute=bfloat16 reduce=float32 accumulate=float32 "
    'trainable=layers.*,"a b,c" clip_norm=0.5'
)
TORCH_NAMES = {
    "adadelta": "Adadelta",
    "adafactor": "Adafactor",
    "adagrad": "Adagrad",
    "adam": "Adam",
    "adamax": "Adamax",
    "adamw": "AdamW",
    "muon": "Muon",
    "nadam": "NAdam",
    "radam": "RAdam",
    "rmsprop": "RMSprop",
    "rprop": "Rprop",
    "sgd": "SGD",
    "sgd_momentum": "SGD",
}
DTYPES = st.sampled_from(["float64", "float32", "bfloat16", "float16"])
GLOBS = st.one_of(
    st.sampled_from(["*", "*.weight", "layers.[0-3].*"]), st.text(min_size=1, max_size=5)
)
SPECS = st.builds(
    TrainingSpec,
    st.sampled_from(list(OPTIMIZERS)),
    DTYPES,
    DTYPES,
    DTYPES,
    DTYPES,
    st.lists(GLOBS, min_size=1, max_size=3).map(tuple),
    st.one_of(st.none(), st.floats(0, exclude_min=True, allow_infinity=False), st.integers(1, 9)),
)


@given(SPECS)
@settings(deadline=None)
def test_text_round_trips(spec: TrainingSpec) -> None:
    assert TrainingSpec.parse(str(spec)) == spec
    assert str(TrainingSpec.parse(str(spec))) == str(spec)
    assert str(spec).isprintable()


def test_text_of_examples() -> None:
    assert str(SPEC) == TEXT
    assert TrainingSpec.parse(TEXT) == SPEC
    assert str(TrainingSpec()) == (
        "adamw master=float32 compute=float32 reduce=float32 accumulate=float32 trainable=*"
    )


def step(name: str, weight: torch.Tensor, gradient: torch.Tensor) -> torch.optim.Optimizer:
    parameter = torch.nn.Parameter(weight.clone())
    options = {"momentum": 0.9} if name == "sgd_momentum" else {}
    optimizer = getattr(torch.optim, TORCH_NAMES[name])([parameter], lr=0.1, **options)
    parameter.grad = gradient.clone()
    optimizer.step()
    assert isinstance(optimizer, torch.optim.Optimizer)
    return optimizer


def stepped(name: str, weight: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    found = step(name, weight, gradient).param_groups[0]["params"][0]
    assert isinstance(found, torch.Tensor)
    return found.detach()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_tensors_are_those_that_torch_keeps(name: str) -> None:
    counts = []
    for shape in [(4, 3)] if name == "muon" else [(4, 3), (5,)]:
        weight = torch.rand(shape)
        (state,) = step(name, weight, torch.rand(shape)).state.values() or [{}]
        whole = [
            x for x in state.values() if isinstance(x, torch.Tensor) and x.shape == weight.shape
        ]
        assert all(tensor.dtype == weight.dtype for tensor in whole)
        counts.append(len(whole))
    assert max(counts) == OPTIMIZERS[name].state_tensors


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_elementwise_means_that_rows_step_alone(name: str) -> None:
    generator = torch.Generator().manual_seed(3)
    weight, gradient = (torch.rand(4, 3, generator=generator) for _ in range(2))
    whole = stepped(name, weight, gradient)
    rows = torch.cat([stepped(name, weight[i:][:1], gradient[i:][:1]) for i in range(4)])
    assert torch.allclose(whole, rows, rtol=0, atol=1e-6) == OPTIMIZERS[name].elementwise


def test_every_optimizer_of_the_table_is_compared_with_torch() -> None:
    assert set(TORCH_NAMES) == set(OPTIMIZERS)


def test_trainable_globs_count_case_and_any_match_is_enough() -> None:
    spec = TrainingSpec(trainable=("layers.*.bias", "Head"))
    assert spec.trains("layers.0.bias")
    assert spec.trains("Head")
    assert not spec.trains("head")
    assert not spec.trains("layers.0.weight")
    assert TrainingSpec().trains("anything at all")
    assert spec.optimizer_kind is OPTIMIZERS["adamw"]


@pytest.mark.parametrize(
    "change",
    [
        {"optimizer": "lion"},
        {"optimizer": None},
        {"master_dtype": "float33"},
        {"master_dtype": "int32"},
        {"compute_dtype": "bool"},
        {"reduce_dtype": "float8_e4m3fn"},
        {"accumulate_dtype": "complex64"},
        {"trainable": ()},
        {"trainable": "*"},
        {"trainable": ["*"]},
        {"trainable": ("",)},
        {"trainable": (None,)},
        {"clip_norm": 0},
        {"clip_norm": -1.0},
        {"clip_norm": math.inf},
        {"clip_norm": math.nan},
        {"clip_norm": True},
        {"clip_norm": "1"},
    ],
)
def test_broken_specs_are_refused_on_one_line(change: dict[str, object]) -> None:
    with pytest.raises(InvalidValueError) as caught:
        replace(SPEC, **change)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_an_unknown_optimizer_lists_the_known_ones() -> None:
    with pytest.raises(InvalidValueError, match=r"adadelta, adafactor, .*sgd_momentum"):
        TrainingSpec("lion")


def test_an_integer_norm_becomes_a_float() -> None:
    assert type(TrainingSpec(clip_norm=1).clip_norm) is float


HEAD = "adamw master=float32 compute=float32 reduce=float32 accumulate=float32"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "adamw",
        HEAD,
        f"{HEAD} trainable=",
        f"{HEAD} trainable=*,",
        f'{HEAD} trainable=""',
        f"{HEAD} trainable=* ",
        f"{HEAD} trainable=* clip_norm=0.0",
        f"{HEAD} trainable=* clip_norm=-1",
        f"{HEAD} trainable=* clip_norm=nan",
        f"{HEAD} trainable=* clip_norm=1e999",
        f"lion{HEAD[5:]} trainable=*",
        f"{HEAD.replace('master=float32', 'master=int8')} trainable=*",
        f"{HEAD.replace('reduce', 'compute')} trainable=*",
        None,
    ],
)
def test_malformed_text_is_a_parse_error(text: str) -> None:
    with pytest.raises(ParseError) as caught:
        TrainingSpec.parse(text)
    assert "\n" not in str(caught.value)


@given(st.integers(0, len(TEXT)), st.integers(0, 6), st.text('adlo=,*" \\32', max_size=4))
@settings(deadline=None, max_examples=200)
def test_damaged_text_parses_or_is_a_parse_error(start: int, length: int, patch: str) -> None:
    try:
        spec = TrainingSpec.parse(TEXT[:start] + patch + TEXT[start + length :])
    except ShardwiseError as error:
        assert isinstance(error, ParseError)
    else:
        assert TrainingSpec.parse(str(spec)) == spec
