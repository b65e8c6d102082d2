"""YAML of plain values: text, numbers, true and false, lists, and 'key: value' lines.

A config is written by hand, so what nobody writes by hand is refused before it is used: tags that name types, aliases
that multiply, nesting without end, files of many megabytes, devices.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import yaml

from pate.components._registry import dotted, shown
from pate.errors import ConfigError, first_line
from pate.storage._files import read_whole

MAX_BYTES = 1_000_000
MAX_VALUES = 20_000
MAX_DEPTH = 40
_LARGEST = 2**63
"""Whole numbers stay below this, and above its negative: they fit into eight bytes wherever they go."""

_HINTS = {
    "'\\t'": "indent by blanks, not by a tab",
    "mapping values are not allowed": "indent the keys of a section alike, and put text that holds ': ' into quotes",
    "expected <block end>": "indent the keys of a section, and the items of a list, alike",
    "could not find expected ':'": "a key is followed by a colon and a blank",
    "unexpected end of stream": "a quote is not closed",
}
"""What people have done where the parser says that."""

_DATA = {".csv", ".tsv", ".parquet", ".xlsx", ".npz", ".npy"}
_TAG = "tag:yaml.org,2002:"
_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*)\Z")
_FLOAT = re.compile(
    r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?\Z"
    r"|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+\Z"  # people who write `1e-5` mean the number
    r"|[-+]?\.(inf|Inf|INF)\Z|\.(nan|NaN|NAN)\Z"
)


def read_yaml(path: Path) -> dict[str, Any]:
    """The plain values of a config file."""
    if path.suffix.lower() in _DATA:
        raise ConfigError(f"{path}: is data, not a config; `pate init` writes one for it")
    try:
        content = parse_yaml(read_whole(path, MAX_BYTES).decode("utf-8-sig"), str(path))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such config file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or first_line(error)})") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not text in UTF-8 (byte {error.start})") from None
    if not isinstance(content, dict):
        what = {type(None): "empty", str: "text", list: "a list"}.get(type(content), f"a {type(content).__name__}")
        raise ConfigError(f"{path}: a config is 'key: value' lines, and this is {what}")
    return content


def parse_yaml(text: str, where: str) -> Any:
    """The value that YAML `text` stands for; `where` it was found is for the error."""
    try:
        return yaml.load(text, Loader=_PlainLoader)
    except ConfigError as error:
        raise ConfigError(f"{where} {error.text()}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or first_line(error)
        hint = next((f"; {text}" for words, text in _HINTS.items() if words in problem), "")
        raise ConfigError(f"{where}{line}: not valid YAML: {problem[:200]}{hint}") from None


def dump_yaml(content: dict[str, Any]) -> str:
    """Text that `read_yaml` reads back as the same values."""
    return yaml.dump(content, Dumper=_PlainDumper, sort_keys=False)


class _PlainLoader(yaml.SafeLoader):
    """Checks every value while the text is still being read, so a hostile one costs no more than its text."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._path: list[int | str] = []
        self._values = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        placed = index is not None  # else it is the whole text, or a key itself
        self._path += [index.value if isinstance(index, yaml.ScalarNode) else index] if placed else []
        self._values += 1
        if isinstance(event, yaml.AliasEvent):
            self._refuse(event, f"aliases ({shown(f'*{event.anchor}')}) are not taken; write the value out")
        if getattr(event, "tag", None) is not None:
            self._refuse(event, f"tags ({shown(event.tag)}) are not taken; write plain values")
        if parent is not None and not placed and not isinstance(event, yaml.ScalarEvent):
            self._refuse(event, "a list or section is not a name for a key")
        if len(self._path) > MAX_DEPTH:
            self._refuse(event, f"nested more than {MAX_DEPTH} deep")
        if self._values > MAX_VALUES:
            self._refuse(event, f"more than {MAX_VALUES:,} values; put data into a file of its own")
        node = super().compose_node(parent, index)
        if isinstance(node, yaml.ScalarNode):
            self._check_number(node)
        elif isinstance(node, yaml.MappingNode):
            self._check_keys(node)
        if placed:
            self._path.pop()
        return node

    def _check_number(self, node: yaml.ScalarNode) -> None:
        if node.tag == f"{_TAG}int":
            digits = node.value.replace("_", "")
            if len(digits) > 20 or abs(int(digits)) >= _LARGEST:
                self._refuse(node, f"{shown(node.value)} is too large a number")
        if node.tag == f"{_TAG}float" and not math.isfinite(self.construct_yaml_float(node)):
            self._refuse(node, f"{shown(node.value)} is not a finite number")

    def _check_keys(self, node: yaml.MappingNode) -> None:
        """Keys are words, or whole numbers as in the `class_weight` of scikit-learn; none is given twice."""
        seen = set()
        for key, _ in node.value:
            if key.tag not in (f"{_TAG}str", f"{_TAG}int"):
                self._refuse(
                    key, f"{shown(key.value)} is not a name for a key; put it into quotes if it is meant as one"
                )
            if key.value == "<<":
                self._refuse(key, "merge keys (<<) are not taken; write the values out")
            if (key.tag, key.value) in seen:
                self._refuse(key, f"key {shown(key.value)} is given twice")
            seen.add((key.tag, key.value))

    def _refuse(self, place: yaml.Event | yaml.Node, why: str) -> None:
        key = f"{dotted(self._path)}: " if self._path else ""
        line = f"line {place.start_mark.line + 1}: " if place.start_mark else ""
        raise ConfigError(f"{line}{key}{why}")


class _PlainDumper(yaml.SafeDumper):
    """Quotes what YAML or `_PlainLoader` would take for something else than text, and writes no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_NUMBERS = ((f"{_TAG}int", _INT, "-+0123456789"), (f"{_TAG}float", _FLOAT, "-+.0123456789"))
# Of YAML 1.1's own words only these: dates stay text, and so do 010 and 1:30, its octal 8 and its 90 seconds.
_PlainLoader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in known if tag in (f"{_TAG}null", f"{_TAG}bool")]
    for letter, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern, _letters in _NUMBERS:
    _PlainLoader.add_implicit_resolver(_tag, _pattern, list(_letters))
    _PlainDumper.add_implicit_resolver(_tag, _pattern, list(_letters))
