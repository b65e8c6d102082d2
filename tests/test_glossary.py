"""One word for a concept: names that the glossary has retired come back nowhere that a user types or reads a path."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from pydantic import BaseModel
from support import REPOSITORY
from test_docs import PAGES

import pate
from pate.cli import app
from pate.config import BaselineConfig
from pate.voters import kind_names, kind_of


def retired() -> set[str]:
    """The names in the last column of the glossary's tables."""
    rows = (line.split("|") for line in (REPOSITORY / "docs" / "glossary.md").read_text().splitlines())
    return {name for row in rows if len(row) == 5 for name in re.findall(r"`(\w+)`", row[3])}


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from models_in(inner)


def config_keys(model: type[BaseModel], known: set[type[BaseModel]]) -> Iterator[str]:
    known.add(model)
    for name, field in model.model_fields.items():
        yield name
        for inner in models_in(field.annotation):
            if inner not in known:
                yield from config_keys(inner, known)


def options(command: Any) -> Iterator[str]:
    for parameter in command.params:
        yield from (name.lstrip("-").replace("-", "_") for name in parameter.opts)
    for inner in getattr(command, "commands", {}).values():
        yield from options(inner)


def test_the_glossary_retires_names() -> None:
    assert len(retired()) > 30


def test_config_keys_are_words_of_the_glossary() -> None:
    models = [BaselineConfig, *(kind_of(name).config_class for name in kind_names())]
    keys = {key for model in models for key in config_keys(model, set())}
    assert {"max_queries", "teacher_rounds", "votes_per_record"} <= keys
    assert not keys & retired()


def test_options_are_words_of_the_glossary() -> None:
    found = set(options(typer.main.get_command(app)))
    assert {"max_queries", "config"} & found
    assert not found & retired() - {"votes", "gaps"}  # `pate plan --votes FILE`, `--gaps` of assumed votes


def test_modules_are_named_by_words_of_the_glossary() -> None:
    names = {path.stem.lstrip("_") for path in Path(pate.__file__).parent.rglob("*.py")}
    assert not names & retired() - {"votes"}  # files of votes


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "glossary.md"], ids=str)
def test_pages_show_keys_by_words_of_the_glossary(page: Path) -> None:
    """Keys of YAML, in blocks and in sentences, and names that stand in code signs alone."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    code = "\n".join([*re.findall(r"^```ya?ml\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL), *spans])
    found = set(re.findall(r"(?<![\w.])(\w+): ", re.sub(r"#.*", "", code)))
    found |= {span for span in spans if span.isidentifier()}
    assert not found & retired() - {"patience"}  # a network student has one


def public_names() -> Iterator[tuple[str, str, bool]]:
    """Modules that are not private by name, what each defines under a public name, and whether that is a class."""
    for path in Path(pate.__file__).parent.rglob("*.py"):
        if path.stem.startswith("_") and path.stem not in ("__init__", "__main__"):
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names = [getattr(node, "name", None), *(getattr(target, "id", None) for target in targets)]
            yield from ((str(path), n, isinstance(node, ast.ClassDef)) for n in names if n and not n.startswith("_"))


def test_what_is_not_for_users_is_private_by_name() -> None:
    assert 200 < len(list(public_names())) <= 500


def test_no_two_classes_have_one_name() -> None:
    root = Path(pate.__file__).parent
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in root.rglob("*.py")]
    classes = [node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    assert not [name for name, times in Counter(classes).items() if times > 1 and not name.startswith("_")]
