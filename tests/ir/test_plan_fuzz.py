"""10 000 seeded mutations of the golden plans: a plan or one clear line, never a traceback."""

import json
import random
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from shardwise.ir.errors import FileFormatError
from shardwise.ir.plan import Plan
from shardwise.ir.plan_file import loads
from tests.support.plans import GOLDEN

CONTENTS = [path.read_bytes() for path in GOLDEN]
TREES = [json.loads(content) for content in CONTENTS]
NUMBERS = [
    0,
    -1,
    1,
    2**31,
    2**63 - 1,
    2**63,
    -(2**63),
    10**400,
    0.0,
    -0.0,
    1e-308,
    5e-324,
    1e308,
]
VALUES = [None, True, False, "", "1", "R", [], {}, [[]], [None], {"a": 1}, 0.5, -3, "NaN"]
LETTERS = "[](){}:;,*|=@/.+-_ \t\n\"\\'#~R0159aSPIx\x00\x7fé٣漢\u2028\ud800🙂"

Mutation = Callable[[random.Random, int], bytes]


def tree_mutation(change: Callable[[random.Random, Any, list[Any]], None]) -> Mutation:
    """A mutation of a fresh copy of the tree; `change` gets one container and its keys."""

    def mutate(rng: random.Random, which: int) -> bytes:
        tree = json.loads(CONTENTS[which])
        containers = [node for node in walk(tree) if node]
        container = rng.choice(containers)
        keys = list(container) if isinstance(container, dict) else list(range(len(container)))
        change(rng, container, keys)
        return dumped(tree)

    return mutate


def walk(tree: Any) -> list[Any]:
    """All objects and lists of a tree."""
    if not isinstance(tree, dict | list):
        return []
    children = tree.values() if isinstance(tree, dict) else tree
    return [tree, *(node for child in children for node in walk(child))]


def dumped(tree: Any) -> bytes:
    return json.dumps(tree, ensure_ascii=False).encode("utf-8", "surrogatepass")


def flip_bytes(rng: random.Random, which: int) -> bytes:
    content = bytearray(CONTENTS[which])
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(content)


def truncate(rng: random.Random, which: int) -> bytes:
    return CONTENTS[which][: rng.randrange(len(CONTENTS[which]))]


def splice(rng: random.Random, which: int) -> bytes:
    """A piece of one file cut out, doubled, or put into another."""
    content, other = CONTENTS[which], rng.choice(CONTENTS)
    start, length = rng.randrange(len(content)), rng.randrange(40)
    piece = rng.choice([b"", content[start : start + length] * 2, other[start : start + length]])
    return content[:start] + piece + content[start + length :]


def delete_key(rng: random.Random, container: Any, keys: list[Any]) -> None:
    del container[rng.choice(keys)]


def rename_key(rng: random.Random, container: Any, keys: list[Any]) -> None:
    key = rng.choice(keys)
    if isinstance(container, dict):
        container[corrupted(rng, key)] = container.pop(key)
    else:
        container.append(container.pop(key))


def change_type(rng: random.Random, container: Any, keys: list[Any]) -> None:
    container[rng.choice(keys)] = rng.choice(VALUES)


def extreme_number(rng: random.Random, container: Any, keys: list[Any]) -> None:
    numbers = [key for key in keys if type(container[key]) in (int, float)]
    container[rng.choice(numbers or keys)] = rng.choice(NUMBERS)


def corrupt_text(rng: random.Random, container: Any, keys: list[Any]) -> None:
    texts = [key for key in keys if isinstance(container[key], str)]
    if texts:
        key = rng.choice(texts)
        container[key] = corrupted(rng, container[key])
    else:
        change_type(rng, container, keys)


def corrupted(rng: random.Random, text: str) -> str:
    for _ in range(rng.choice([1, 1, 2, 5])):
        place = rng.randrange(len(text) + 1)
        letter = rng.choice(LETTERS)
        digits = str(rng.choice(NUMBERS[:8]))
        text = rng.choice(
            [
                text[:place] + letter + text[place:],
                text[:place] + text[place + 1 :],
                text[:place] + letter + text[place + 1 :],
                text[:place] + text[place : place + 6] * rng.choice([2, 3, 900]) + text[place:],
                text[place:] + text[:place],
                re.sub("[0-9]+", digits[: rng.choice([20, 400])], text, count=1),
                text[:place] + digits + text[place:],
            ]
        )
    return text


def nest(rng: random.Random, container: Any, keys: list[Any]) -> None:
    """Copies inside copies, long lists of copies, deep nesting."""
    key = rng.choice(keys)
    copy = json.loads(json.dumps(container))
    match rng.randrange(4):
        case 0:
            container[key] = copy
        case 1 if isinstance(container, list):
            container.extend(copy * rng.choice([1, 50]))
        case 2:
            for _ in range(rng.choice([3, 20, 150])):
                copy = [copy] if rng.random() < 0.5 else {"a": copy}
            container[key] = copy
        case _:
            donor = rng.choice(walk(rng.choice(TREES)))
            container[key] = json.loads(json.dumps(donor))


def swap(rng: random.Random, container: Any, keys: list[Any]) -> None:
    """Two values trade places: often legal types in the wrong order."""
    first, second = rng.choice(keys), rng.choice(keys)
    container[first], container[second] = container[second], container[first]


def repeat_key(rng: random.Random, which: int) -> bytes:
    """A key twice in one object."""
    lines = CONTENTS[which].decode().splitlines()
    keyed = [place for place, line in enumerate(lines) if re.match(r' *"[^"]+": .*,$', line)]
    place = rng.choice(keyed)
    return "\n".join([*lines[:place], lines[place], *lines[place:]]).encode()


def reencode(rng: random.Random, which: int) -> bytes:
    """Another encoding, a byte order mark, NaN for a number, noise around the object."""
    text = CONTENTS[which].decode()
    numbers = [*re.finditer(r": (-?[0-9][0-9.e+-]*)", text)]
    number = rng.choice(numbers)
    word = rng.choice(["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "0x10", "01", "+1"])
    return rng.choice(
        [
            text.encode(rng.choice(["utf-16", "utf-16-le", "utf-32", "utf-8-sig"])),
            (text[: number.start(1)] + word + text[number.end(1) :]).encode(),
            rng.randbytes(rng.randrange(1, 200)),
            rng.choice([b"[" * 50_000, b'{"a":' * 50_000, b"\x00" * 99, b" " * 99, b"[]", b"7"]),
            text.encode() + rng.choice([b"}", b"\x00", b"x", b"\n\n", text.encode()]),
        ]
    )


MUTATIONS: dict[str, Mutation] = {
    "flip bytes": flip_bytes,
    "truncate": truncate,
    "splice": splice,
    "repeat key": repeat_key,
    "reencode": reencode,
    "delete key": tree_mutation(delete_key),
    "rename key": tree_mutation(rename_key),
    "change type": tree_mutation(change_type),
    "extreme number": tree_mutation(extreme_number),
    "corrupt text": tree_mutation(corrupt_text),
    "nest": tree_mutation(nest),
    "swap": tree_mutation(swap),
}


def outcome(content: bytes) -> tuple[str, Plan | None]:
    """The error line, or the plan; any other exception fails the test that asks."""
    try:
        return "", loads(content, name="plan.json")
    except FileFormatError as error:
        return str(error), None


def test_10_000_mutated_files_give_a_plan_or_one_line() -> None:
    rng = random.Random(20_260_725)
    names = list(MUTATIONS)
    refused: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    paths: set[str] = set()
    for case in range(10_000):
        name = names[case % len(names)]
        content = MUTATIONS[name](rng, rng.randrange(len(CONTENTS)))
        try:
            line, plan = outcome(content)
        except BaseException as error:
            raise AssertionError(f"case {case}, {name}: {error!r} for {content!r}") from error
        if plan is None:
            assert line.startswith("plan.json: "), (case, line)
            assert line.isprintable() and len(line) < 900, (case, line)
            assert line.endswith("`shardwise plan`)"), (case, line)
            refused[name] += 1
            paths.update(re.findall(r"^plan\.json: at (.*?): ", line))
        else:
            accepted[name] += 1
            if accepted[name] % 8 == 1:  # legal by chance: then it is a plan like any other
                assert loads(str(plan).encode()) == plan, (case, name)
    # The mutations must reach deep into the file and not only break its syntax.
    assert len(paths) > 150, sorted(paths)
    assert set(refused) == set(names), refused
    assert sum(refused.values()) > 8_000, (refused, accepted)
    assert len(accepted) >= 5, accepted
