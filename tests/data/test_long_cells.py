"""A long cell takes steps as it is long, and no more: a record that delays a run could be seen from outside."""

from __future__ import annotations

import ast
import io
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import groupby
from pathlib import Path
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pate.data
from pate.data import _columns
from pate.data._column_inference import DATE_FORMS, seen
from pate.data._columns import Column, canonical, canonical_id, one_hot
from pate.data._csv_records import OpenQuote, _Quotes, records_of_lines
from pate.data._model_input import Encoder, cell_text

READERS: dict[str, Callable[[str], object]] = {
    "number": lambda text: column(text).numbers(lenient=True),
    "number with a decimal comma": lambda text: column(text, ",").numbers(lenient=True),
    "what is wrong with a number": lambda text: column(text).no_number(0, None),
    "what is wrong with a number after a comma": lambda text: column(text, ",").no_number(0, None),
    "what is wrong with a date": lambda text: column(text).no_number(0, "%d.%m.%Y %H:%M"),
    **{f"date {form}": lambda text, form=form: column(text).numbers(form, lenient=True) for form in DATE_FORMS},  # type: ignore[misc]
    "label": lambda text: column(text).labels(["a", "b"], keep_unknown=True),
    "category": lambda text: one_hot([text], ["a", "b"]),
    "class": canonical,
    "id of text": lambda text: canonical_id(text, "text"),
    "whole number as id": lambda text: canonical_id(text, "integer"),
    "a cell of a frame": lambda text: FRAME.transform(Frame(x=[text], c=[text])),
    "public column": lambda text: seen("x", column(text)),
    "csv": lambda text: read(text),
    "csv, in quotes": lambda text: read(f'"{text}"\n'),
}
LONG: dict[str, Callable[[int], str]] = {
    "digits": lambda n: "1" * n + "x",
    "zeros": lambda n: "0" * n + "x",
    "zeros and ones": lambda n: "0" * (n // 2) + "1" * (n // 2) + "x",
    "decimals": lambda n: "1." + "1" * n + "x",
    "an exponent": lambda n: "1e" + "1" * n + "x",
    "commas": lambda n: "1" * n + "," + "1" * n + "x",
    "blanks": lambda n: "1" + " " * n + "x",
    "a date and more": lambda n: "01.01.2000 " + "1" * n,
    "a date between blanks": lambda n: "01.01.2000" + " " * n + "10:10" + " " * n,
    "letters": lambda n: "ä" * n,
    "marks": lambda n: "a" + "\u0301" * (n // 2) + "\u0323" * (n // 2),
    "marks in turn": lambda n: "a" + "\u0301\u0323" * (n // 2),
    "syllables": lambda n: "\u1112\u1161\u11ab" * (n // 3),
    "quotes": lambda n: '"' * n,
    "quotes and delimiters": lambda n: '",' * (n // 2),
    "delimiters and blanks": lambda n: ", " * (n // 2),
    "a delimiter and blanks": lambda n: "," + " " * n,
    "line breaks": lambda n: "x\n" * (n // 2),
    "carriage returns": lambda n: "\r" * n,
    "a capital that becomes two": lambda n: "ß\u0130" * (n // 2),
}


class Frame(dict[str, list[Any]]):
    """As much of a data frame as an encoder looks at."""

    columns = ("x", "c")
    dtypes = None


FRAME = Encoder.of(Frame(x=np.array([1.0]), c=np.array(["a"], dtype=object)))  # type: ignore[arg-type]


def column(text: str, decimal: str = ".") -> Column:
    return Column("f: column 'x'", "cells", "text", [text.strip()], decimal=decimal)


def read(text: str) -> int:
    try:
        return sum(1 for _ in records_of_lines(io.StringIO(text, newline="\n"), ","))
    except OpenQuote:
        return 0


def steps(reader: Callable[[str], object], text: str) -> int:
    """How many lines of Python this package runs to read a text."""
    done = 0

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal done
        if "pate" not in frame.f_code.co_filename:
            return None
        done += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        reader(text)
    finally:
        sys.settrace(before)
    return done


@pytest.mark.parametrize("reader", READERS)
def test_steps_grow_as_a_cell_does(reader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times the signs take at most four times the steps; and what sorts or parses otherwise gets no long text.

    Unicode's normalisation takes long for many marks that are not in order, strptime for what nobody knows.
    """
    given: list[str] = []

    def normalised(form: str, text: str) -> str:
        runs = [list(run) for marks, run in groupby(text, lambda s: unicodedata.combining(s) > 0) if marks]
        given.extend(run for run in map("".join, runs) if list(run) != sorted(run, key=unicodedata.combining))
        return unicodedata.normalize(form, text)

    class Clock(datetime):
        @classmethod
        def strptime(cls, text: str, form: str) -> datetime:  # type: ignore[override]
            given.append(text)
            return datetime.strptime(text, form)

    fake = SimpleNamespace(normalize=normalised, combining=unicodedata.combining)
    monkeypatch.setattr(_columns, "unicodedata", fake)
    monkeypatch.setattr(_columns, "datetime", Clock)
    for name, make in LONG.items():
        short = steps(READERS[reader], make(1_500))
        assert steps(READERS[reader], make(6_000)) <= 4 * short + 100, name
    assert max(map(len, given), default=0) <= 1_000


def patterns() -> Iterator[tuple[str, str]]:
    """Every regular expression that code which reads cells writes down, with the file that it is in."""
    folder = Path(pate.data.__file__).parent
    for path in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if called and ast.unparse(node.func.value) == "re" and node.func.attr != "escape":  # type: ignore[attr-defined]
                first = node.args[0]  # type: ignore[attr-defined]
                if isinstance(first, ast.Constant):
                    yield path.name, first.value


def gives_back(parsed: Any) -> bool:
    """Whether a pattern has a repetition without end that may be tried with fewer signs than it took."""
    for code, argument in parsed:
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT) and argument[1] == codes.MAXREPEAT:
            return True
        if any(map(gives_back, within(argument))):
            return True
    return False


def within(argument: Any) -> Iterator[Any]:
    """The patterns within a part of another."""
    if isinstance(argument, _parser.SubPattern):
        yield argument
    elif isinstance(argument, (tuple, list)):
        for one in argument:
            yield from within(one)


def test_no_pattern_tries_a_long_cell_in_more_than_one_way() -> None:
    found = list(patterns())
    assert len(found) >= 8
    quotes = _Quotes(",")
    found += [("csv_records.py", one.pattern) for one in (quotes._opening, quotes._rest_of_cell)]
    for file, pattern in found:
        assert not gives_back(_parser.parse(pattern)), f"{file}: {pattern}"
    for pattern in (r"a+", r"(?:a|b)*x", r"x(a(b+?)){1,2}"):
        assert gives_back(_parser.parse(pattern))
    for pattern in (r"a++b*+", r"a{1,4}", r"[+-]?(?:a++)?"):
        assert not gives_back(_parser.parse(pattern))


def test_marks_of_a_long_text_are_composed_as_unicode_says() -> None:
    signs = ["a", "\u0301", "\u0323", "\u0344", "é", "\uac00", "\u1161", "\u11a8", "x", "\u0f73", "\u3099", "か"]
    rng = np.random.default_rng(0)
    for _ in range(5):
        text = "".join(rng.choice(signs, 3_000))
        assert canonical(text) == unicodedata.normalize("NFC", text)
        assert canonical_id(text, "text") == unicodedata.normalize("NFC", text)


def test_numbers_are_what_they_were() -> None:
    texts = ["1", "+1.", "-.5", "1e5", "1.5E-3", ".", "", "1_0", "1e", "--1", "0x1", "1.2.3", " ", "1,5", "00", "-"]
    usual = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
    found = np.array([column(text).numbers(lenient=True)[0] for text in texts])
    np.testing.assert_array_equal(np.isfinite(found), [usual.fullmatch(text) is not None for text in texts])


def test_a_long_cell_is_no_date() -> None:
    few, many = (column("1" + " " * n + "2 2000").numbers("%d %m %Y", lenient=True)[0] for n in (9, 999))
    assert np.isfinite(few)
    assert np.isinf(many)


def test_a_number_that_python_cannot_write_out_stops_no_fit() -> None:
    """Of a frame: whole numbers of any length are a person's own."""
    found = FRAME.transform(Frame(x=[10**5000, 1], c=[10**5000, "a"]))
    np.testing.assert_array_equal(found, [[1, 0], [1, 1]])
    assert cell_text(10**5000) != cell_text(10**5000 + 1)
