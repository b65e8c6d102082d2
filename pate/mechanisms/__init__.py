"""Noisy answers to label queries. Importable without ray and torch."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from pate.accounting import _parameters as parameters
from pate.components._registry import Registry, dotted, nearest, shown
from pate.errors import ConfigError, numbered
from pate.mechanisms._trial import check_class, made_and_tried
from pate.mechanisms.base import UNANSWERED, Counts, Mechanism, Split, Stream
from pate.mechanisms.noisy_max import ConfidentGNMax, GNMax, Histogram, LNMax, PermuteAndFlip
from pate.mechanisms.sparse_vector import LectureMSvec, MSvec
from pate.mechanisms.stability import GaussianMSamp, GaussianMStab, MSamp, MStab

__all__ = [
    "UNANSWERED",
    "ConfidentGNMax",
    "Counts",
    "GNMax",
    "GaussianMSamp",
    "GaussianMStab",
    "Histogram",
    "LNMax",
    "LectureMSvec",
    "MSamp",
    "MStab",
    "MSvec",
    "Mechanism",
    "PermuteAndFlip",
    "Split",
    "Stream",
    "build",
    "mechanism_class",
    "mechanism_classes",
    "parameters_of",
]


_REGISTRY = Registry("pate.mechanisms", "mechanism", Mechanism, derived=True)


def mechanism_class(settings: Mapping[str, Any]) -> type[Mechanism]:
    """The class that settings['name'] means, by short name or dotted path."""
    found: type[Mechanism] = _REGISTRY.find(str(settings.get("name", "")), "mechanism.name")
    if not _is_ours(found):
        check_class(found, f"mechanism.name = {shown(settings['name'])}")
    return found


def _is_ours(cls: type[Mechanism]) -> bool:
    """Whether it comes with this package, whose tests hold it to its contract."""
    return cls.__module__.startswith(f"{__name__}.") and "name" in vars(cls)


def mechanism_classes() -> list[type[Mechanism]]:
    """Every mechanism of this folder, by name."""
    return [cls for _, cls in sorted(_REGISTRY.classes().items())]


def parameters_of(cls: type[Mechanism]) -> dict[str, str]:
    """What each parameter of a mechanism means, in the words of the docstring's numpydoc section."""
    described: Any = cls
    found = re.findall(r"^(\w+) : .*\n((?: {4}.*\n?)+)", inspect.getdoc(cls) or "", re.MULTILINE)
    words = {name: " ".join(text.split()).removesuffix(".") for name, text in found}
    return {field.name: words.get(field.name, "") for field in dataclasses.fields(described)}


def build(settings: Mapping[str, Any], n_teachers: int | None = None) -> Mechanism:
    """The mechanism that `settings` name: {'name': 'gnmax', 'sigma': 40}; a name is short or a dotted path.

    One with a parameter `n_teachers` gets the number of teachers.

    >>> build({"name": "gnmax", "sigma": 40})
    GNMax(sigma=40.0)
    """
    given = dict(settings)
    given.pop("name", None)
    cls: Any = mechanism_class(settings)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    if n_teachers is not None and "n_teachers" in fields:
        given["n_teachers"] = n_teachers
    unknown = [key for key in given if key not in fields]
    problems = [
        f"{dotted(['mechanism', key])}: {cls.name} has no such parameter; {nearest(key, fields)}" for key in unknown
    ]
    meant = {close for key in unknown for close in get_close_matches(key, fields, n=1)}  # a misspelt one lacks too
    none = dataclasses.MISSING
    absent = [key for key, one in fields.items() if one.default is none and one.default_factory is none]
    if absent := [f"mechanism.{key}" for key in absent if key not in given and key not in meant]:
        problems.append(f"{', '.join(absent)}: missing; {cls.name} needs {'it' if len(absent) == 1 else 'them'}")
    if problems:
        raise ConfigError(numbered(problems))
    for key, value in given.items():
        given[key] = parameters.number(value, f"mechanism.{key}")
    try:
        if _is_ours(cls):
            found: Mechanism = cls(**given)
            return found
        return made_and_tried(cls, given, n_teachers, f"mechanism.name = {shown(settings['name'])}")
    except parameters.ParameterError as error:
        raise error.under("mechanism") from None
    except ValueError as error:
        raise ConfigError(f"mechanism: {error}") from None
