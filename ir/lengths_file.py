"""Files of document lengths: histograms as CSV, and raw lists of lengths.

A histogram has one row per bin and, for every length dim, columns `<dim>_low`, `<dim>_high` and
`<dim>_tokens`, with one column `documents`:

    # source: where it comes from
    S_low,S_high,documents,S_tokens
    0,0,12,0
    0,512,100,20000
    512,1024,5,

Bins are (low, high]. A row with every low and high at 0 counts empty documents. Blank tokens
mean that nobody counted them: the bin is log-uniform. Lines that begin with `#` are comments;
the first `# source:` is kept. Errors are FileFormatError and name the file and the line.
"""

import csv
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn

import numpy as np

from shardwise.ir.bucket import DIM_NAME, MAX_LENGTH
from shardwise.ir.curve import number_text
from shardwise.ir.errors import FileFormatError, InvalidValueError, ParseError
from shardwise.ir.length_bin import LengthBin, first_disorder
from shardwise.ir.length_law import length_law
from shardwise.ir.length_samples import LengthArray, check_samples
from shardwise.ir.lengths import Lengths
from shardwise.ir.prices import parse_number
from shardwise.ir.scanner import shown

_FORM: Final = "'S_low,S_high,documents,S_tokens'"
_WHOLE: Final = re.compile(r"[0-9]{1,13}")
_SOURCE: Final = re.compile(r"#\s*source:\s*(.*\S)\s*")


def read_lengths(path: str | Path) -> Lengths:
    """The histogram in a CSV file; raises FileFormatError naming the line and the remedy."""
    lines = _read_text(path).splitlines()
    sources = [match[1] for line in lines if (match := _SOURCE.fullmatch(line.strip()))]
    rows = _rows(path, lines)
    try:
        number, header = next(rows)
    except StopIteration:
        raise FileFormatError(
            f"{path}: the file is empty; give a header like {_FORM} and one row per bin"
        ) from None
    dims = _header_dims(path, number, header)
    bins: list[LengthBin] = []
    numbers: list[int] = []
    empty_documents = 0.0
    for number, cells in rows:
        if len(cells) != len(header):
            _fail(path, number, f"{len(cells)} cells, the header has {len(header)}; complete it")
        row = dict(zip(header, cells, strict=True))
        documents = _number(path, number, "documents", row["documents"])
        if all(row[f"{dim}_{end}"] == "0" for dim in dims for end in ("low", "high")):
            if any(_cell(row, f"{dim}_tokens") not in ("", "0") for dim in dims):
                _fail(path, number, "empty documents hold no tokens; set their tokens to 0")
            empty_documents += documents
            continue
        bins.append(_bin(path, number, row, dims, documents))
        numbers.append(number)
    disorder = first_disorder(bins)
    if disorder is not None:
        before, after, problem = disorder
        _fail(
            path,
            numbers[after],
            f"bin {_box(bins[after])} {problem} {_box(bins[before])} of line {numbers[before]}; "
            "give disjoint bins sorted by low",
        )
    if not any(item.documents for item in bins):
        raise FileFormatError(
            f"{path}: no bin has documents: an empty corpus; give a row with documents"
        )
    return Lengths(dims, tuple(bins), empty_documents, sources[0] if sources else "")


def lengths_csv(lengths: Lengths) -> str:
    """The CSV text of a histogram; `read_lengths` of it gives an equal one."""
    ends = [f"{dim}_{end}" for dim in lengths.dims for end in ("low", "high")]
    header = [*ends, "documents", *(f"{dim}_tokens" for dim in lengths.dims)]
    lines = [f"# source: {lengths.source.strip()}"] if lengths.source.strip() else []
    lines.append(",".join(header))
    rank = len(lengths.dims)
    if lengths.empty_documents:
        zeros = ["0"] * (2 * rank)
        lines.append(",".join([*zeros, number_text(lengths.empty_documents), *["0"] * rank]))
    for item in lengths.bins:
        bounds = [str(end) for pair in zip(item.low, item.high, strict=True) for end in pair]
        tokens = map(number_text, item.tokens)
        lines.append(",".join([*bounds, number_text(item.documents), *tokens]))
    return "\n".join(lines) + "\n"


def write_lengths(lengths: Lengths, path: str | Path) -> None:
    """Write a histogram as CSV; folders on the way are made. Raises FileFormatError."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(lengths_csv(lengths), encoding="utf-8")
    except (OSError, ValueError) as error:
        problem = " ".join(str(error).split())
        raise FileFormatError(
            f"{path}: cannot be written ({problem}); give another path"
        ) from error


def read_samples(path: str | Path, dims: tuple[str, ...] = ("S",)) -> LengthArray:
    """The lengths of real documents, [n, dims], from a list: one document per line, or a .npy
    file.

    A line holds a whole number for each dim, in the order of `dims`, separated by commas or
    blanks; a first line with the names of the dims gives their order instead. Zeros (empty
    documents) stay. Raises FileFormatError naming the line (text) or the document (.npy).
    """
    if Path(path).suffix == ".npy":
        try:
            return check_samples(np.load(path, allow_pickle=False), dims)
        except (OSError, ValueError) as error:
            raise FileFormatError(f"{path}: {' '.join(str(error).split())}") from error
    order = list(dims)
    values: list[list[int]] = []
    for number, line in enumerate(_read_text(path).splitlines(), start=1):
        cells = line.replace(",", " ").split()
        if not cells or cells[0].startswith("#"):
            continue
        if not values and sorted(cells) == sorted(dims):
            order = cells
            continue
        if len(cells) != len(dims):
            _fail(path, number, f"{len(cells)} lengths; give one for each of {', '.join(dims)}")
        lengths = dict(zip(order, cells, strict=True))
        values.append([_whole(path, number, dim, lengths[dim]) for dim in dims])
    if not values:
        raise FileFormatError(f"{path}: the file has no document; give one length per line")
    return check_samples(np.array(values, dtype=np.int64), dims)


def _read_text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise FileFormatError(
            f"{path}: cannot be read ({error.strerror}); give the path of a text file"
        ) from error
    except ValueError as error:  # not UTF-8, or a null byte in the path
        problem = " ".join(str(error).split())
        raise FileFormatError(
            f"{path}: cannot be read (not UTF-8 text: {problem}); convert it"
        ) from error


MAX_LINE: Final = 100_000
"""Longest line of a length file."""


def _fail(path: str | Path, number: int, problem: str) -> NoReturn:
    raise FileFormatError(f"{path}:{number}: {problem}")


def _rows(path: str | Path, lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and cells of the lines that are neither blank nor comments."""
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            if len(line) > MAX_LINE:
                _fail(path, number, f"the line has {len(line)} characters; repair the file")
            yield number, [cell.strip() for cell in next(csv.reader([line]))]


def _header_dims(path: str | Path, number: int, header: list[str]) -> tuple[str, ...]:
    dims = tuple(name.removesuffix("_low") for name in header if name.endswith("_low"))
    if not dims or not all(DIM_NAME.fullmatch(dim) for dim in dims):
        _fail(
            path,
            number,
            f"the header {shown(','.join(header))} is not like {_FORM}; write it so",
        )
    needed = [f"{dim}_{end}" for dim in dims for end in ("low", "high")] + ["documents"]
    known = [*needed, *(f"{dim}_tokens" for dim in dims)]
    missing = [name for name in needed if name not in header]
    unknown = [name for name in header if name not in known]
    if missing:
        _fail(path, number, f"the header lacks {', '.join(missing)}; add the column")
    if unknown or len(set(header)) != len(header):
        wrong = ", ".join(map(shown, unknown)) or "a column twice"
        _fail(path, number, f"the header has {wrong}; the columns are {', '.join(known)}")
    return dims


def _cell(row: dict[str, str], name: str) -> str:
    return row.get(name, "")


def _whole(path: str | Path, number: int, name: str, text: str) -> int:
    if _WHOLE.fullmatch(text) and int(text) <= MAX_LENGTH:
        return int(text)
    if text.startswith("-"):
        _fail(path, number, f"{name} is {shown(text)}, below 0; lengths are 0 or more")
    if not text or text.lstrip("+").lower() in ("inf", "infinity"):
        _fail(
            path,
            number,
            f"{name} is {shown(text)}, not finite; give the longest length that you train on",
        )
    _fail(
        path,
        number,
        f"{name} is {shown(text)}; give a whole number of tokens up to {MAX_LENGTH}",
    )


def _number(path: str | Path, number: int, name: str, text: str) -> float:
    try:
        value = parse_number(text)
    except ParseError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        _fail(path, number, f"{name} is {shown(text)}; give a finite number of at least 0")
    return value


def _bin(
    path: str | Path, number: int, row: dict[str, str], dims: tuple[str, ...], documents: float
) -> LengthBin:
    low = tuple(_whole(path, number, f"{dim}_low", row[f"{dim}_low"]) for dim in dims)
    high = tuple(_whole(path, number, f"{dim}_high", row[f"{dim}_high"]) for dim in dims)
    tokens = []
    for dim, least, most in zip(dims, low, high, strict=True):
        if least >= most:
            _fail(
                path,
                number,
                f"{dim}_low {least} is not below {dim}_high {most}; swap or correct",
            )
        text = _cell(row, f"{dim}_tokens")
        known = _number(path, number, f"{dim}_tokens", text) if text else None
        tokens.append(documents * length_law(least, most).mean if known is None else known)
    try:
        return LengthBin(low, high, documents, tuple(tokens))
    except InvalidValueError as error:
        _fail(path, number, str(error))


def _box(item: LengthBin) -> str:
    return str(item).partition(":")[0]
