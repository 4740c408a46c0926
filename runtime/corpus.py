"""Documents as token arrays, from files, from Python's own library, or from a user's function."""

import glob
import importlib
import json
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwise.ir.errors import FileFormatError, InvalidValueError, UnsupportedError

Tokens = npt.NDArray[np.integer[Any]]
"""Token ids of a document, [tokens]."""
Encode = Callable[[str], Tokens]

STDLIB = "stdlib"
"""The standard library's own source files: a corpus that every machine has."""


@dataclass(frozen=True)
class Corpus:
    """Tokenised documents in a fixed order, none longer than `max_length`."""

    documents: tuple[Tokens, ...]
    split: int
    """Documents that were longer and were split."""
    empty: int
    """Documents without a token, left out."""

    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of every document, int64 [documents]."""
        return np.array([len(document) for document in self.documents], dtype=np.int64)

    def describe(self) -> str:
        """One line for summaries."""
        lengths = self.lengths()
        return (
            f"{len(self.documents)} documents, {int(lengths.sum())} tokens, longest "
            f"{int(lengths.max())}; {self.split} longer documents split, "
            f"{self.empty} empty left out"
        )


def load_corpus(
    source: str, tokenizer: str = "bytes", *, max_length: int, field: str = "text"
) -> Corpus:
    """The corpus of a source; see DataSource for the forms.

    Raises FileFormatError for files that are missing or not of their form, and
    InvalidValueError for an empty corpus.
    """
    if max_length < 1:
        raise InvalidValueError(f"max_length is {max_length}; give 1 token or more")
    encode = tokenizer_of(tokenizer)
    pieces: list[Tokens] = []
    split = empty = 0
    for tokens in _documents(source, encode, field):
        if len(tokens) == 0:
            empty += 1
            continue
        if len(tokens) > max_length:
            split += 1
        small = _small(tokens)
        pieces += [small[i : i + max_length] for i in range(0, len(small), max_length)]
    if not pieces:
        raise InvalidValueError(
            f"the corpus {source!r} has no document with a token ({empty} empty ones); name files "
            "with text"
        )
    return Corpus(tuple(pieces), split, empty)


def _small(tokens: Tokens) -> Tokens:
    """The same ids in the smallest of a few dtypes: every rank holds the whole corpus."""
    low, high = int(tokens.min()), int(tokens.max())
    for dtype in (np.uint8, np.uint16, np.int32):
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return tokens.astype(dtype)
    return tokens


def tokenizer_of(name: str) -> Encode:
    """`bytes`: the UTF-8 bytes of a text, 0 to 255. `hf:DIR`: a saved transformers tokenizer."""
    if name == "bytes":
        return lambda text: np.frombuffer(text.encode("utf-8"), dtype=np.uint8)
    if name.startswith("hf:"):
        try:
            from transformers import AutoTokenizer
        except ImportError as error:
            raise UnsupportedError(
                f"tokenizer {name!r} needs transformers; install shardwise[hf]"
            ) from error
        loaded: Any = AutoTokenizer.from_pretrained(name[3:])
        return lambda text: np.array(loaded(text)["input_ids"], dtype=np.int64)
    raise InvalidValueError(f"tokenizer {name!r}: use bytes or hf:DIR")


def _documents(source: str, encode: Encode, field: str) -> Iterator[Tokens]:
    if source == STDLIB:
        for path in stdlib_files():
            yield encode(path.read_text(encoding="utf-8", errors="replace"))
    elif ":" in source and not Path(source).exists():
        yield from _from_function(source, encode)
    else:
        files = sorted(glob.glob(source, recursive=True))  # noqa: PTH207 (a pattern, maybe absolute)
        if not files:
            raise FileFormatError(
                f"corpus {source!r}: no such file; give a path or a glob of files"
            )
        for name in files:
            yield from _from_file(Path(name), encode, field)


def stdlib_files() -> list[Path]:
    """Source files of the running interpreter's standard library, in the order of their names.

    Without site-packages and without what the interpreter made itself at its build.
    """
    root = Path(sysconfig.get_path("stdlib"))
    return sorted(
        path
        for path in root.rglob("*.py")
        if not {"site-packages", "dist-packages", "__pycache__"} & set(path.parts)
        and not path.name.startswith("_sysconfigdata")
    )


def _from_file(path: Path, encode: Encode, field: str) -> Iterator[Tokens]:
    try:
        if path.suffix == ".npy":
            yield from _from_array(path)
        elif path.suffix == ".jsonl":
            yield from _from_lines(path, encode, field)
        else:
            yield encode(path.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read ({error.strerror}); mend that") from error


def _from_array(path: Path) -> Iterator[Tokens]:
    """One document of a 1-D array, one per row of a 2-D one. Pickled arrays are not opened."""
    try:
        array = np.load(path, allow_pickle=False)
    except ValueError as error:
        raise FileFormatError(
            f"{path}: no .npy file of numbers; save token ids with numpy.save, ragged documents in "
            "a file each"
        ) from error
    if array.ndim not in (1, 2):
        raise FileFormatError(
            f"{path}: an array of {array.ndim} dims; give 1 (a document) or 2 (documents by row)"
        )
    for row in [array] if array.ndim == 1 else array:
        yield _ids(row, str(path))


def _from_lines(path: Path, encode: Encode, field: str) -> Iterator[Tokens]:
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                text = json.loads(line)[field]
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise FileFormatError(_no_text(path, number, field)) from error
            if not isinstance(text, str):
                raise FileFormatError(_no_text(path, number, field))
            yield encode(text)


def _no_text(path: Path, number: int, field: str) -> str:
    return (
        f"{path}: line {number} is no JSON object with a text under {field!r}; repair it, or set "
        "data.field"
    )


def _ids(values: Any, source: str) -> Tokens:
    """Token ids as int64; FileFormatError for numbers that are no integers."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise FileFormatError(
            f"{source}: a document of {array.dtype} with {array.ndim} dims; give a sequence of "
            "integers"
        )
    return array.astype(np.int64)


def _from_function(source: str, encode: Encode) -> Iterator[Tokens]:
    """Documents of a user's `module:function`: texts, or sequences of token ids."""
    module, _, name = source.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise FileFormatError(
            f"corpus {source!r}: {error}; give a file, or module:function of an importable module"
        ) from error
    finally:
        sys.path.pop(0)
    for item in function():
        yield encode(item) if isinstance(item, str) else _ids(item, source)
