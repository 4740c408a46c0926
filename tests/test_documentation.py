"""What README and docs say is so: links, text forms, and the output of commands."""

import importlib
import re
import shlex
from pathlib import Path

import pytest

from shardwise.cli import main

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])

VALUES = re.findall(
    r"^\| `(\w+)` \| `(\w+)` \| `(.+)` \|$", (ROOT / "docs/values.md").read_text("utf-8"), re.M
)
COMMANDS = [
    (page.relative_to(ROOT).as_posix(), command, output)
    for page in PAGES
    for block in re.findall(r"^```console\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)
    for command, output in re.findall(r"^\$ (shardwise .*)\n((?:(?!\$ ).*\n)*)", block, re.M)
]

SNIPPETS = [
    (page.relative_to(ROOT).as_posix(), block)
    for page in PAGES
    for block in re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", page.read_text("utf-8"))
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_every_page_or_its_folder_is_in_the_index() -> None:
    index = (ROOT / "docs/index.md").read_text("utf-8")
    linked = {(ROOT / "docs" / target).resolve() for target in re.findall(r"\]\(([^)#]+)", index)}
    pages = {page for page in PAGES if page.name not in ("README.md", "index.md")}
    assert {page.name for page in pages - linked if page.parent not in linked} == set()


@pytest.mark.parametrize(("name", "module", "text"), VALUES)
def test_text_forms_parse_back(name: str, module: str, text: str) -> None:
    value_class = getattr(importlib.import_module(f"shardwise.ir.{module}"), name)
    text = text.replace(r"\|", "|")
    assert str(value_class.parse(text)) == text


def test_there_is_something_to_test() -> None:
    assert len(VALUES) >= 10
    assert {"README.md"} <= {page for page, *_ in COMMANDS} & {page for page, _ in SNIPPETS}


@pytest.mark.parametrize(("page", "command", "output"), COMMANDS)
def test_commands_print_what_the_page_shows(
    page: str,
    command: str,
    output: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("sys.argv", shlex.split(command))
    with pytest.raises(SystemExit):
        main()
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    shown = output.rstrip().splitlines()
    if shown[-1] == "...":
        shown.pop()
        assert len(printed) > len(shown)
        printed = printed[: len(shown)]
    assert printed == shown


@pytest.mark.parametrize(("page", "block"), SNIPPETS)
def test_snippets_print_what_their_comments_say(
    page: str, block: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(compile(block, page, "exec"), {})  # the text of our own pages
    said = re.findall(r"^print\(.*\)  # (.*)$", block, re.M)
    assert said and capsys.readouterr().out.splitlines() == said
