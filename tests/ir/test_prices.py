"""Prices: monomials against plain sums over documents, text forms, what is refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.prices import Monomial, Prices, parse_number

DIMS = ("S", "S_src", "S_tgt", "Frames")
dims = st.sampled_from(DIMS)
monomials = st.one_of(
    st.sampled_from([Monomial("one"), Monomial("documents"), Monomial("tokens")]),
    st.builds(lambda kind, dim: Monomial(kind, (dim,)), st.sampled_from(["sum", "square"]), dims),
    st.lists(dims, min_size=2, max_size=2, unique=True).map(
        lambda pair: Monomial("product", tuple(sorted(pair)))
    ),
    st.builds(
        lambda window, dim: Monomial("window", (dim,) if dim else (), window),
        st.integers(1, 10**18 - 1),
        st.none() | dims,
    ),
)
coefficients = st.floats(allow_nan=False, allow_infinity=False).filter(bool)
prices = st.builds(
    lambda terms, error: Prices(tuple((str(m), c) for m, c in terms.items()), error),
    st.dictionaries(monomials, coefficients, max_size=5),
    st.floats(0, 1, exclude_max=True),
)
DOCUMENTS = ({"S_src": 5, "S_tgt": 2}, {"S_src": 1, "S_tgt": 9}, {"S_src": 4, "S_tgt": 4})


@given(monomials)
def test_monomial_text_round_trips(monomial: Monomial) -> None:
    assert Monomial.parse(str(monomial)) == monomial


@given(prices)
def test_prices_text_round_trips(price: Prices) -> None:
    assert Prices.parse(str(price)) == price


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("B", 3),
        ("T", 25),
        ("S_src", 10),
        ("S_src2", 25 + 1 + 16),
        ("S_tgt2", 4 + 81 + 16),
        ("S_src*S_tgt", 10 + 9 + 16),
        ("W4(S_src)", 4 * 5 + 1 * 1 + 4 * 4),
        ("W4(S_tgt)", 2 * 2 + 4 * 9 + 4 * 4),
    ],
)
def test_every_monomial_of_packed_documents(text: str, value: int) -> None:
    assert Prices(((text, 1.0),)).packed(DOCUMENTS) == value


def test_one_dim_needs_no_name() -> None:
    documents = [{"S": 10}, {"S": 3}]
    assert Prices((("W4", 1.0),)).packed(documents) == 4 * 10 + 3 * 3
    assert Prices((("S2", 1.0),)).packed(documents) == 109
    assert Prices((("S", 1.0),)).packed(documents) == Prices((("T", 1.0),)).packed(documents)


@given(prices, st.integers(0, 50), st.integers(1, 10**6), st.integers(1, 10**6))
def test_padded_is_packed_of_equal_documents(
    price: Prices, documents: int, source: int, target: int
) -> None:
    named = {"S": 3, "S_src": source, "S_tgt": target, "Frames": 2}
    legal = tuple(
        pair for pair in price.coefficients if not (pair[0].startswith("W") and "(" not in pair[0])
    )
    price = Prices(legal)
    padded = price.padded(documents, named)
    assert padded == price.packed([named] * documents) or math.isnan(padded)


def test_terms_are_kept_in_one_order_and_the_sum_is_exact() -> None:
    terms = (("S2", 3.0), ("1", 1.0), ("W16", -2.0), ("T", 1e-6), ("B", 2.0))
    price = Prices(terms, 0.25)
    assert [text for text, _ in price.coefficients] == ["1", "B", "T", "S2", "W16"]
    assert Prices(terms[::-1], 0.25) == price
    assert str(price) == "1.0 1 + 2.0 B + 1e-06 T + 3.0 S2 + -2.0 W16 ~ 0.25"
    assert Prices((("1", 1e16), ("B", 1.0), ("T", -1e16))).padded(1, {"S": 1}) == 1.0
    assert str(Prices(())) == "0 ~ 0.0"
    assert Prices(()).padded(4, {"S": 1}) == 0
    assert Prices((("1", 1), ("T", 2))) == Prices((("1", 1.0), ("T", 2.0)))
    assert price.dims == {"S"}


def test_overflow_is_inf_and_no_error() -> None:
    assert Prices((("S2", 1e308),)).padded(10**9, {"S": 10**18}) == math.inf
    assert math.isnan(Prices((("S2", 1e308), ("T", -1e308))).padded(10**9, {"S": 10**18}))


@pytest.mark.parametrize(
    ("given_coefficients", "fit_error", "rule"),
    [
        ([("T", 1.0)], 0.0, "tuple of"),
        ((("T", 1.0, 2.0),), 0.0, r"give \(monomial, number\)"),
        ((("X Y", 1.0),), 0.0, "as a monomial"),
        (((3, 1.0),), 0.0, "is a str"),
        ((("T", math.nan),), 0.0, "finite"),
        ((("T", math.inf),), 0.0, "finite"),
        ((("T", 10**400),), 0.0, "finite"),
        ((("T", True),), 0.0, "finite"),
        ((("T", 0.0),), 0.0, "leave the term out"),
        ((("T", 1.0), ("T", 2.0)), 0.0, "twice"),
        ((), -0.1, "from 0 to below 1"),
        ((), 1.0, "from 0 to below 1"),
        ((), 1e300, "from 0 to below 1"),
        ((), math.nan, "finite"),
    ],
)
def test_illegal_prices_are_refused(given_coefficients, fit_error, rule) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidValueError, match=rule) as caught:
        Prices(given_coefficients, fit_error)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        ("T",),
        ("sum",),
        ("sum", ("T",)),
        ("sum", ("_s",)),
        ("sum", ("S2",)),
        ("one", ("S",)),
        ("one", (), 3),
        ("product", ("S_tgt", "S_src")),
        ("product", ("S", "S")),
        ("window",),
        ("window", ("S",), -1),
        ("window", ("S",), True),
        ("window", (), 10**18),
    ],
)
def test_illegal_monomials_are_refused(arguments) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidValueError, match="a monomial is one of"):
        Monomial(*arguments)


@pytest.mark.parametrize(
    "text", ["", "2", "_", "T2", "B2", "S*S", "S3", "W", "W0", "W01", "W4096(", "W٣", "S ", "Б"]
)
def test_broken_monomial_texts(text: str) -> None:
    with pytest.raises(ParseError, match="monomial"):
        Monomial.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        None,
        "1.0 T",
        "1.0 T ~",
        "1.0 T ~ x",
        "T ~ 0.0",
        "1.0 T +2.0 B ~ 0.0",
        "1_0.0 T ~ 0.0",
        "nan T ~ 0.0",
        "1.0 T ~ -1.0",
        "1.0 T ~ 0.0 ~ 0.0",
        "0 T ~ 0.0",
    ],
)
def test_broken_price_texts(text: str) -> None:
    with pytest.raises(ParseError) as caught:
        Prices.parse(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "lengths"), [("S", {"S_src": 1}), ("W4", {"S_src": 1, "S_tgt": 1}), ("W4", {})]
)
def test_lengths_of_other_dims_are_refused(text: str, lengths: dict[str, int]) -> None:
    with pytest.raises(InvalidValueError, match="give a length for its dim"):
        Prices(((text, 1.0),)).padded(1, lengths)


@pytest.mark.parametrize("text", ["", " 1", "1 ", "1_0", "٣", "x"])
def test_broken_numbers(text: str) -> None:
    with pytest.raises(ParseError, match="as a number"):
        parse_number(text)
