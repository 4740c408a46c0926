"""Lengths: the joint histogram of document lengths that a model will see.

One bin is a box of (low, high] in every length dim, with its documents and their tokens in
each dim. Inside a bin the dims are independent, and each is spread by the LengthLaw of its
mean: log-uniform, tilted so that the bin has the tokens that the histogram states. Everything
below (sample, mass, percentiles) follows that one law, so samples and masses agree.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from shardwise.ir.bucket import DIM_NAME, Bucket, check_dims
from shardwise.ir.curve import check_float, number_text, parse_checked, scan_number
from shardwise.ir.errors import InvalidValueError
from shardwise.ir.length_bin import LengthBin, first_disorder
from shardwise.ir.length_law import quantiles
from shardwise.ir.length_samples import check_edges, check_samples, geometric_edges
from shardwise.ir.scanner import Scanner, check_kinds, quote_string, shown

PERCENTS: Final = (1.0, 5.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 100.0)
"""Percentages of the percentile table."""

_FORM: Final = "'S empty=0 \"source\" (0,512]:100:20000', (0,8]*(0,4]:2:9,5 for two dims"


@dataclass(frozen=True, slots=True)
class Mass:
    """What a bucket holds of a histogram: documents and their tokens by dim, in its units."""

    documents: float
    tokens: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Percentile:
    """One row of a percentile table for one dim, lengths in tokens."""

    percent: float
    length: int
    """Least length that at least this percentage of the documents do not exceed."""
    token_length: int
    """Least length such that documents up to it hold at least this percentage of the tokens."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """A joint histogram of document lengths: disjoint bins in ascending order of `low`.

    Documents of length 0 (in any dim) are counted apart: no bucket holds them and none is
    sampled. Text: `S empty=0 "source" (0,512]:100:20000 (512,1024]:5:4000`. Raises
    InvalidValueError for bad dims, bins of another number of dims, bins that overlap or are
    out of order, or no document at all.
    """

    dims: tuple[str, ...]
    """Names of the length dims: ("S",), ("S_src", "S_tgt")."""
    bins: tuple[LengthBin, ...]
    empty_documents: float = 0.0
    source: str = ""
    """Where the histogram comes from, in one line; not part of the digest."""

    def __post_init__(self) -> None:
        check_dims(self.dims, "a length histogram")
        empty = check_float(self.empty_documents, "empty_documents")
        object.__setattr__(self, "empty_documents", empty)
        if not isinstance(self.source, str) or not self.source.isprintable():
            raise InvalidValueError(f"source {shown(self.source)} is not one line; shorten it")
        check_kinds(self.bins, LengthBin, "bins")
        for item in self.bins:
            if len(item.low) != len(self.dims):
                raise InvalidValueError(
                    f"bin {item} does not have dims {', '.join(self.dims)}; give each bounds"
                )
        if not any(item.documents for item in self.bins):
            raise InvalidValueError(
                "a length histogram has no document with tokens; give a bin with documents"
            )
        disorder = first_disorder(self.bins)
        if disorder is not None:
            before, after, problem = disorder
            raise InvalidValueError(
                f"bin {self.bins[after]} {problem} {self.bins[before]}; give disjoint bins in "
                "order of low"
            )

    @classmethod
    def from_samples(
        cls,
        samples: npt.ArrayLike,
        edges: Sequence[Sequence[int]] | None = None,
        *,
        dims: tuple[str, ...] = ("S",),
        source: str = "",
    ) -> "Lengths":
        """The histogram of document lengths, [n] or [n, dims] whole numbers, over bin edges.

        `edges` holds for each dim the ascending ends of its bins, the first below every length;
        None: `geometric_edges` up to the longest. Bins without documents are left out.
        Raises InvalidValueError for negative lengths, lengths outside the edges, or none over
        0.
        """
        check_dims(dims, "a length histogram")
        array = check_samples(samples, dims)
        full = array[(array > 0).all(axis=1)]
        if not full.size:
            raise InvalidValueError(
                f"{len(array)} documents, none with a length over 0 in every dim; give others"
            )
        if edges is None:
            edges = [geometric_edges(int(top)) for top in full.max(axis=0)]
        if len(edges) != len(dims):
            raise InvalidValueError(
                f"{len(edges)} lists of edges for {len(dims)} dims; give each dim one"
            )
        ends = [check_edges(edge, full[:, i], dims[i]) for i, edge in enumerate(edges)]
        place = np.stack([np.searchsorted(e, full[:, i]) for i, e in enumerate(ends)], axis=1)
        cells, cell_of, counts = np.unique(place, axis=0, return_inverse=True, return_counts=True)
        sums = np.zeros(cells.shape, dtype=np.int64)
        np.add.at(sums, cell_of.reshape(-1), full)
        bins = tuple(
            LengthBin(
                tuple(int(e[at - 1]) for e, at in zip(ends, cell, strict=True)),
                tuple(int(e[at]) for e, at in zip(ends, cell, strict=True)),
                float(count),
                tuple(float(item) for item in total),
            )
            for cell, count, total in zip(cells, counts, sums, strict=True)
        )
        return cls(dims, bins, float(len(array) - len(full)), source)

    @property
    def documents(self) -> float:
        """Documents with tokens, in the units of the bins."""
        return math.fsum(item.documents for item in self.bins)

    @property
    def tokens(self) -> tuple[float, ...]:
        """Tokens by dim, in the units of the bins."""
        by_dim = zip(*(item.tokens for item in self.bins), strict=True)
        return tuple(math.fsum(parts) for parts in by_dim)

    @property
    def mean_tokens(self) -> float:
        """Tokens of a document (that has some), all dims together, on average."""
        return math.fsum(self.tokens) / self.documents

    def largest(self) -> dict[str, int]:
        """The largest length that a document may have, by dim."""
        highs = zip(*(item.high for item in self.bins if item.documents), strict=True)
        return dict(zip(self.dims, map(max, highs), strict=True))

    def mass(self, bucket: Bucket) -> Mass:
        """Documents and tokens inside a bucket; raises InvalidValueError for other dims."""
        if set(bucket.dims) != set(self.dims):
            raise InvalidValueError(
                f"bucket {bucket} has dims {', '.join(bucket.dims)}, the histogram "
                f"{', '.join(self.dims)}; give a band for each"
            )
        bands = [bucket.band(dim) for dim in self.dims]
        documents: list[float] = []
        tokens: list[list[float]] = [[] for _ in self.dims]
        for item in self.bins:
            if not item.documents:
                continue
            laws = [item.law(dim) for dim in range(len(self.dims))]
            pairs = list(zip(laws, bands, strict=True))
            shares = [law.share_below(b.high) - law.share_below(b.low) for law, b in pairs]
            inside = item.documents * math.prod(shares)
            if inside <= 0:
                continue
            documents.append(inside)
            for dim, (law, band) in enumerate(pairs):
                part = law.tokens_below(band.high) - law.tokens_below(band.low)
                tokens[dim].append(inside / shares[dim] * part)
        return Mass(math.fsum(documents), tuple(map(math.fsum, tokens)))

    def sample(self, rng: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
        """Lengths of `count` documents drawn with replacement, [count, dims].

        Takes 1 + dims uniforms per document from `rng`, document by document, so that drawing
        in parts gives the same documents as drawing at once.
        """
        uniforms = rng.random((count, 1 + len(self.dims)))
        filled = [item for item in self.bins if item.documents]
        totals = np.cumsum([item.documents for item in filled])
        chosen = np.searchsorted(totals, uniforms[:, 0] * totals[-1], side="right")
        chosen = np.minimum(chosen, len(filled) - 1)
        columns = []
        for dim in range(len(self.dims)):
            low = np.array([float(item.low[dim]) for item in filled])
            high = np.array([float(item.high[dim]) for item in filled])
            exponent = np.array([item.law(dim).exponent for item in filled])
            shares = uniforms[:, 1 + dim]
            columns.append(quantiles(shares, low[chosen], high[chosen], exponent[chosen]))
        return np.stack(columns, axis=1)

    def percentiles(self, dim: str, percents: Sequence[float] = PERCENTS) -> tuple[Percentile, ...]:
        """The percentile table of one dim; raises InvalidValueError for a dim not there."""
        if dim not in self.dims:
            raise InvalidValueError(
                f"the histogram has no dim {shown(dim)}; it has {', '.join(self.dims)}"
            )
        index = self.dims.index(dim)
        pairs = [(item.documents, item.law(index)) for item in self.bins if item.documents]
        edge = max(law.high for _, law in pairs)

        def least(share: float, by_tokens: bool) -> int:
            def held(length: int) -> float:
                if by_tokens:
                    return math.fsum(n * law.tokens_below(length) for n, law in pairs)
                return math.fsum(n * law.share_below(length) for n, law in pairs)

            target = share * held(edge) * (1 - 1e-12)
            below, above = 0, edge
            while above - below > 1:
                middle = (below + above) // 2
                below, above = (below, middle) if held(middle) >= target else (middle, above)
            return above

        rows = []
        for percent in percents:
            if not 0 < percent <= 100:
                raise InvalidValueError(f"percent {percent} is not above 0 and at most 100")
            share = percent / 100
            rows.append(Percentile(percent, least(share, False), least(share, True)))
        return tuple(rows)

    def digest(self) -> str:
        """SHA-256 of the text form without the source, in hexadecimal."""
        return hashlib.sha256(self._text("").encode()).hexdigest()

    def _text(self, source: str) -> str:
        head = f"{','.join(self.dims)} empty={number_text(self.empty_documents)}"
        return " ".join([head, quote_string(source), *(str(item) for item in self.bins)])

    def __str__(self) -> str:
        return self._text(self.source)

    @classmethod
    def parse(cls, text: str) -> "Lengths":
        """The inverse of `str`; raises ParseError."""
        return parse_checked(text, _FORM, cls._scan)

    @classmethod
    def _scan(cls, scanner: Scanner) -> "Lengths":
        dims = [scanner.need(DIM_NAME, "a length dim")]
        while scanner.take(","):
            dims.append(scanner.need(DIM_NAME, "a length dim"))
        scanner.expect(" empty=")
        empty_documents = scan_number(scanner)
        scanner.expect(" ")
        source = scanner.string()
        bins = []
        while scanner.take(" "):
            bins.append(LengthBin.scan(scanner))
        return cls(tuple(dims), tuple(bins), empty_documents, source)
