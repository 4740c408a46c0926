"""TensorSpec: legal dims, text, sizes in elements and bytes."""

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.dtype import DTYPE_BYTES
from shardwise.ir.errors import InvalidValueError, ParseError, ShardwiseError
from shardwise.ir.expression import symbol
from shardwise.ir.tensor import MAX_DIM, TensorSpec, spec_of, symbol_names

B, S = symbol("B"), symbol("S")
DIMS = st.one_of(
    st.integers(0, 10**9),
    st.sampled_from([B, S, B * S, 2 * S + 1, sympy.floor(S / 8), sympy.Max(B, S), S**2 - S]),
)
SPECS = st.builds(
    TensorSpec, st.lists(DIMS, max_size=5).map(tuple), st.sampled_from(list(DTYPE_BYTES))
)


@given(SPECS)
@settings(deadline=None)
def test_text_round_trips(spec: TensorSpec) -> None:
    assert TensorSpec.parse(str(spec)) == spec
    assert str(TensorSpec.parse(str(spec))) == str(spec)
    assert spec_of(str(spec)) == spec
    assert hash(spec_of(str(spec))) == hash(spec)


@given(SPECS, st.integers(1, 50), st.integers(1, 50))
@settings(deadline=None)
def test_sizes_at_concrete_symbols(spec: TensorSpec, batch: int, length: int) -> None:
    concrete = spec.at({"B": batch, "S": length})
    assert concrete.is_concrete
    assert concrete.symbols() == frozenset()
    count = 1
    for dim, size in zip(spec.shape, concrete.shape, strict=True):
        assert size == (dim if isinstance(dim, int) else dim.subs({B: batch, S: length}))
        count *= size
    assert concrete.element_count() == count
    assert spec.element_count().subs({B: batch, S: length}) == count
    assert concrete.nbytes() == count * DTYPE_BYTES[spec.dtype]


def test_text_of_examples() -> None:
    assert str(TensorSpec((B, S, 64), "float32")) == "float32[B, S, 64]"
    assert str(TensorSpec((), "int64")) == "int64[]"
    assert TensorSpec.parse("int64[]") == TensorSpec((), "int64")
    assert TensorSpec.parse("float32[Max(B, S), 3]").shape == (sympy.Max(B, S), 3)
    assert TensorSpec.parse("bool[B,S]") == TensorSpec((B, S), "bool")


def test_scalar_has_one_element() -> None:
    assert TensorSpec((), "float64").element_count() == 1
    assert TensorSpec((), "float64").nbytes() == 8
    assert TensorSpec((4, 0), "float64").nbytes() == 0


def test_symbols_are_named() -> None:
    assert TensorSpec((B, B * S, 3), "int8").symbols() == {"B", "S"}
    assert symbol_names(2 * S + 1) == {"S"}
    assert not TensorSpec((B, 3), "int8").is_concrete


def test_sympy_integers_become_int() -> None:
    spec = TensorSpec((sympy.Integer(3), B - B + 4), "int8")
    assert [type(dim) for dim in spec.shape] == [int, int]
    assert spec == TensorSpec((3, 4), "int8")


@pytest.mark.parametrize(
    "dim",
    [
        -1,
        MAX_DIM,
        2.0,
        True,
        "3",
        None,
        sympy.Rational(1, 2),
        sympy.Symbol("S"),
        sympy.Integer(-2),
    ],
)
def test_bad_dims_are_refused(dim: object) -> None:
    with pytest.raises(InvalidValueError):
        TensorSpec((dim,), "float32")


def test_largest_dim_is_legal() -> None:
    assert TensorSpec.parse(str(TensorSpec((MAX_DIM - 1,), "int8"))).shape == (MAX_DIM - 1,)


def test_shape_is_a_tuple_and_dtype_known() -> None:
    with pytest.raises(InvalidValueError, match="tuple"):
        TensorSpec([1], "float32")  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="float33"):
        TensorSpec((1,), "float33")


def test_missing_size_and_fraction_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="S"):
        TensorSpec((B, S), "int8").at({"B": 2})
    with pytest.raises(InvalidValueError):
        TensorSpec((S / 2,), "int8").at({"S": 3})
    with pytest.raises(InvalidValueError):
        TensorSpec((S - 8,), "int8").at({"S": 3})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "float32",
        "float32[",
        "float32[B,,S]",
        "float32[-1]",
        "float32[1.5]",
        "float33[1]",
        "[1]",
        "float32[1] ",
        "float32[(B, S)]",
        "float32[B; S]",
        "float32[f(B)]",
        3,
        None,
    ],
)
def test_malformed_text_is_a_parse_error(text: str) -> None:
    with pytest.raises(ParseError) as caught:
        TensorSpec.parse(text)
    assert "\n" not in str(caught.value)


@given(st.text("float32[]BS, *(-)1", max_size=20))
@settings(deadline=None)
def test_random_text_parses_or_is_a_parse_error(text: str) -> None:
    try:
        spec = TensorSpec.parse(text)
    except ShardwiseError as error:
        assert isinstance(error, ParseError)
    else:
        assert TensorSpec.parse(str(spec)) == spec
