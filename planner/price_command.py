"""`shardwise price`: a table of published runs in, the same table with predictions out.

    shardwise price RUNS.csv -o PRICED.csv

Every column is kept, in its order; planner/price_runs.COLUMNS are added, or filled anew where the
table has them already. A row that can't be priced keeps its cells and says why; a file that is no
such table is one error.
"""

import csv
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shardwise.ir.config_files import CONFIGS
from shardwise.ir.errors import FileFormatError
from shardwise.ir.scanner import shown
from shardwise.planner.price_runs import COLUMNS, RunPricer
from shardwise.planner.published_machine import Machines

REQUIRED: Final = ("layers", "hidden")
"""Columns without which no row says what model ran."""
_MOST_REASONS: Final = 3
_REFUSED: Final = "not priced: "


@dataclass(frozen=True, slots=True)
class PricedTable:
    """What became of the rows of a table."""

    rows: int
    seconds: float
    reasons: tuple[tuple[str, int], ...]
    """Why rows were not priced, the most frequent first, with their number."""

    @property
    def priced(self) -> int:
        """Rows that have a prediction."""
        return self.rows - sum(count for _, count in self.reasons)

    def __str__(self) -> str:
        text = f"priced {self.priced} of {self.rows} rows in {self.seconds:.1f} s"
        if not self.reasons:
            return text
        lines = [f"{text}; {self.rows - self.priced} not priced:"]
        lines += [f"{count:6d}  {reason}" for reason, count in self.reasons[:_MOST_REASONS]]
        left = sum(count for _, count in self.reasons[_MOST_REASONS:])
        if left:
            lines.append(f"{left:6d}  for other reasons, each in its row's price_note")
        return "\n".join(lines)


def price_table(runs: Path, output: Path, *, configs: Path | None = None) -> PricedTable:
    """Price every row of `runs` into `output`, with a progress bar on stderr.

    `configs` is the folder of `hardware/` and `software/` profiles, the project's own by default.
    Raises FileFormatError for a file that is no table of runs, or a folder without profiles.
    """
    folder = configs or CONFIGS
    for name in ("hardware", "software"):
        if not (folder / name).is_dir():
            raise FileFormatError(
                f"{folder}: there is no folder {name} in it; give the folder that holds hardware/ "
                "and software/"
            )
    columns, count = _checked(runs)
    if output.exists() and output.samefile(runs):
        raise FileFormatError(f"{output}: this is the table that is read; write another file")
    output.parent.mkdir(parents=True, exist_ok=True)
    pricer = RunPricer(Machines(folder))
    start = time.perf_counter()
    reasons: Counter[str] = Counter()
    with output.open("w", newline="", encoding="utf-8") as file, _progress(count) as advance:
        writer = csv.DictWriter(file, [*columns, *(c for c in COLUMNS if c not in columns)])
        writer.writeheader()
        for cells in pricer.rows(_rows(runs)):
            writer.writerow(cells)
            note = cells["price_note"]
            if note.startswith(_REFUSED):
                reasons[note.removeprefix(_REFUSED)] += 1
            advance()
    return PricedTable(count, time.perf_counter() - start, tuple(reasons.most_common()))


def _rows(path: Path) -> Iterator[dict[str, str]]:
    """Cells of every row by column; `_checked` has seen the file."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        yield from csv.DictReader(file, strict=True)


def _checked(path: Path) -> tuple[list[str], int]:
    """(columns, number of rows) of a table of runs; raises FileFormatError."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            columns = next(reader, [])
            _check_columns(path, columns)
            count = 0
            for row in reader:
                if row and len(row) != len(columns):
                    raise FileFormatError(
                        f"{path}:{reader.line_num}: {len(row)} cells, but {len(columns)} columns; "
                        "give every row a cell for each column, blank where nothing is known"
                    )
                count += bool(row)
    except OSError as error:
        raise FileFormatError(
            f"{path}: cannot be read ({error.strerror}); give the path of a CSV file"
        ) from None
    except UnicodeDecodeError:
        raise FileFormatError(f"{path}: not text in UTF-8; give a CSV file") from None
    except csv.Error as error:
        raise FileFormatError(f"{path}:{reader.line_num}: not CSV ({error}); repair it") from None
    if count == 0:
        raise FileFormatError(f"{path}: a header without rows; give a row for each run")
    return columns, count


def _check_columns(path: Path, columns: list[str]) -> None:
    if not columns:
        raise FileFormatError(f"{path}: the file is empty; give a CSV table of runs")
    missing = [name for name in REQUIRED if name not in columns]
    if missing:
        raise FileFormatError(
            f"{path}: no column {' and none '.join(missing)} in the header ({len(columns)} "
            f"columns, the first is {shown(columns[0])}); name the columns as docs/prices.md says"
        )
    twice = [name for name, number in Counter(columns).items() if number > 1]
    if twice:
        raise FileFormatError(f"{path}: column {shown(twice[0])} stands twice; rename one")


@contextmanager
def _progress(count: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr, shown where that is a terminal; gives what advances it by a row."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = ("pricing", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("rows", total=count)
        yield lambda: bar.advance(task)
