"""Contents for loaders: damaged files, JSON documents with other leaves, and arbitrary bytes."""

import copy
import json
from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

NUMBERS = (0, -1, 1, 2**31, 2**53 + 1, -(2**63), 2**64, 10**400, 0.5, -0.0, 1e308, 5e-324)
ODD = st.sampled_from(
    [
        *NUMBERS,
        float("nan"),
        float("inf"),
        float("-inf"),
        "\ud800",
        "\0",
        "\x1b[2J",
        "..",
        "",
        "a" * 5000,
    ]
)
LEAVES = st.one_of(ODD, st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=6,
)
ANY_JSON = VALUES.map(lambda value: json.dumps(value).encode())
DEEP = st.integers(900, 5000)  # arrays or objects within each other


def cases(count: int) -> settings:
    """So many cases of a property."""
    return settings(settings.get_profile("fuzz"), max_examples=count)


def changed(documents: Sequence[Any]) -> st.SearchStrategy[bytes]:
    """A JSON document with some of its parts replaced, left out, renamed or swapped."""

    @st.composite
    def made(draw: st.DrawFn) -> bytes:
        document = copy.deepcopy(draw(one_of(documents)))
        for _ in range(draw(st.integers(1, 3))):
            places = list(places_in(document))
            if places:
                change(draw, *draw(st.sampled_from(places)), draw(st.sampled_from(places)))
        return json.dumps(document).encode()

    return made()


def change(draw: st.DrawFn, holder: Any, key: Any, other: tuple[Any, Any]) -> None:
    """Change what is at a place of a document; `other` is another of its places."""
    match draw(
        st.sampled_from(["alike", "alike", "replace", "replace", "remove", "rename", "swap"])
    ):
        case "alike":
            holder[key] = draw(alike(holder[key]))
        case "replace":
            holder[key] = draw(VALUES)
        case "remove":
            del holder[key]
        case "rename" if isinstance(holder, dict):
            holder[draw(st.text(max_size=8))] = holder.pop(key)
        case _:
            holder[key] = copy.deepcopy(other[0][other[1]])


def one_of(choices: Sequence[Any]) -> st.SearchStrategy[Any]:
    """One of whole files or documents, which are too long to be shown."""
    return st.integers(0, len(choices) - 1).map(lambda place: choices[place])


def alike(value: Any) -> st.SearchStrategy[Any]:
    """Values of the same type, which get further than others."""
    match value:
        case bool():
            return st.booleans()
        case int():
            return st.one_of(
                st.sampled_from([n for n in NUMBERS if isinstance(n, int)]), st.integers(-5, 200)
            )
        case float():
            return st.one_of(st.sampled_from(NUMBERS), st.floats())
        case str():
            return st.one_of(
                st.sampled_from(["cpu", "auto", "\ud800", "\0", "..", "/", ""]), st.text(max_size=8)
            )
        case list() if value:
            return st.lists(alike(value[0]), max_size=4)
    return LEAVES


def places_in(document: Any) -> Any:
    """Every place of a document, as what holds it and the key within."""
    keys = (
        list(document)
        if isinstance(document, dict)
        else range(len(document))
        if isinstance(document, list)
        else []
    )
    for key in keys:
        yield document, key
        yield from places_in(document[key])


def nested(documents: Sequence[Any]) -> st.SearchStrategy[bytes]:
    """A JSON document with one of its parts very deep."""

    @st.composite
    def made(draw: st.DrawFn) -> bytes:
        document = copy.deepcopy(draw(one_of(documents)))
        holder, key = draw(st.sampled_from(list(places_in(document))))
        holder[key] = "@"
        depth, (start, end) = draw(DEEP), draw(st.sampled_from([("[", "]"), ('{"a":', "}")]))
        return json.dumps(document).replace('"@"', start * depth + "1" + end * depth).encode()

    return made()


def json_files(documents: Sequence[Any]) -> st.SearchStrategy[bytes]:
    """Documents changed, nested, replaced by something else, or damaged as files."""
    whole = [json.dumps(document).encode() for document in documents]
    most = changed(documents)
    return st.one_of(most, most, most, most, nested(documents), ANY_JSON, damaged(whole))


def damaged(files: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """A whole file with bytes changed, cut, put in, doubled or taken from another."""

    @st.composite
    def made(draw: st.DrawFn) -> bytes:
        content = bytearray(draw(one_of(files)))
        for _ in range(draw(st.integers(1, 4))):
            damage(draw, content, draw(one_of(files)))
        return bytes(content)

    return made()


def damage(draw: st.DrawFn, content: bytearray, other: bytes) -> None:
    start = draw(st.integers(0, len(content)))
    end = min(len(content), start + draw(st.sampled_from([1, 2, 4, 8, 64, 1024])))
    match draw(st.sampled_from(["flip", "write", "cut", "insert", "double", "splice", "end"])):
        case "flip" if start < len(content):
            content[start] ^= 1 << draw(st.integers(0, 7))
        case "write":
            content[start:end] = draw(st.binary(min_size=end - start, max_size=end - start))
        case "cut":
            del content[start:end]
        case "insert":
            content[start:start] = draw(st.binary(max_size=16))
        case "double":
            content[start:start] = content[start:end]
        case "splice":
            content[start:] = other[draw(st.integers(0, len(other))) :]
        case _:
            del content[start:]


def files(whole: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Damaged files, and now and then bytes of no kind."""
    most = damaged(whole)
    return st.one_of(most, most, most, st.binary(max_size=200))
