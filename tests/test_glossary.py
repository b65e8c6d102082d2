"""One word for a concept: names that the glossary has retired come back nowhere that a user types or reads a path."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import typer
from pydantic import BaseModel
from support import REPOSITORY

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
