"""The tables of docs/design/profiles.md are those of the profiles."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("profile_table", ROOT / "benchmarks/profile_table.py")
TABLE = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(TABLE)
PAGE = ROOT / "docs/design/profiles.md"


def test_the_page_shows_the_profiles_as_they_are() -> None:
    assert PAGE.read_text(encoding="utf-8").split(TABLE.MARK)[1] == TABLE.tables()


def test_rows_count_every_figure_once() -> None:
    rows = [line for line in TABLE.tables().splitlines() if line.startswith("| a100-sxm-80 ")]
    cells = [cell.strip() for cell in rows[0].strip("| ").split("|")]
    assert int(cells[9]) == sum(int(cell) for cell in cells[10:])


def test_only_the_tables_of_a_page_are_written(tmp_path, capsys) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"kept\n{TABLE.MARK}gone\n")
    assert TABLE.main(["--write", str(page)]) == 0
    assert page.read_text() == f"kept\n{TABLE.MARK}{TABLE.tables()}"
    page.write_text("kept\n")
    assert TABLE.main(["--write", str(page)]) == 1
    assert page.read_text() == "kept\n"
    assert "has no line" in capsys.readouterr().err
