"""Cells of one row of published measurements, and the notes made while they are read."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from shardwise.ir.errors import InvalidValueError

NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:e[0-9]+)?")
_MAY_BE_ZERO: Final = ("glu",)
_MOST: Final = 10**12
"""Of a count: more is a slip of the pen."""


@dataclass
class Row:
    """Cells of a row, and the notes made while they are read."""

    cells: Mapping[str, str]
    notes: list[str] = field(default_factory=list)

    def text(self, name: str) -> str:
        """A cell without the blanks around it; "" where there is none."""
        return (self.cells.get(name) or "").strip()

    def integer(self, name: str, default: int | None = None, why: str = "") -> int:
        """The whole number of a cell; its default with a note where it is blank."""
        text = self.text(name)
        if not text:
            if default is None:
                raise InvalidValueError(f"{name} is blank and nothing else says it")
            if why:
                self.notes.append(f"{name} {default} assumed: {why}")
            return default
        number = float(text) if NUMBER.fullmatch(text) else -1.0
        least = 0 if name in _MAY_BE_ZERO else 1
        if not least <= number <= _MOST or number % 1:
            raise InvalidValueError(f"{name} is {text!r:.40}; a whole number is wanted")
        return int(number)

    def known(self, name: str) -> int | None:
        """The whole number of a cell, or None."""
        return self.integer(name) if self.text(name) else None

    def note(self, text: str) -> None:
        """Add a note once."""
        if text not in self.notes:
            self.notes.append(text)
