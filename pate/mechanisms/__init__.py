"""Noisy answers to label queries. Importable without ray and torch."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

from pate.accounting import parameters
from pate.errors import ConfigError
from pate.mechanisms.base import UNANSWERED, Counts, Mechanism
from pate.mechanisms.confident import ConfidentGNMax
from pate.mechanisms.noisy_max import GNMax, LNMax
from pate.mechanisms.sparse_vector import MSvec
from pate.mechanisms.stability import MSamp, MStab
from pate.naming import dotted, nearest, resolve, shown

__all__ = [
    "UNANSWERED",
    "ConfidentGNMax",
    "Counts",
    "GNMax",
    "LNMax",
    "MSamp",
    "MStab",
    "MSvec",
    "Mechanism",
    "build",
    "mechanism_class",
]


def mechanism_class(settings: Mapping[str, Any]) -> type[Mechanism]:
    """The class that settings['name'] means, by short name or dotted path."""
    base: Any = Mechanism  # abstract, which mypy would not take for type[T]
    found: type[Mechanism] = resolve(str(settings.get("name", "")), "pate.mechanisms", base, "mechanism.name")
    return found


def build(settings: Mapping[str, Any]) -> Mechanism:
    """The mechanism that `settings` name: {'name': 'gnmax', 'sigma': 40}; a name is short or a dotted path.

    >>> build({"name": "gnmax", "sigma": 40})
    GNMax(sigma=40.0)
    """
    given = dict(settings)
    given.pop("name", None)
    cls: Any = mechanism_class(settings)
    if inspect.isabstract(cls) or not hasattr(cls, "__dataclass_fields__"):
        raise ConfigError(f"mechanism.name = {shown(settings['name'])}: not a mechanism itself, only a kind of them")
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for key in given:
        if key not in fields:
            raise ConfigError(f"{dotted(['mechanism', key])}: {cls.name} has no such parameter; {nearest(key, fields)}")
    for key, field in fields.items():
        if key not in given and field.default is dataclasses.MISSING:
            raise ConfigError(f"mechanism.{key}: missing; {cls.name} needs it")
    for key, value in given.items():
        given[key] = parameters.number(value, f"mechanism.{key}")
    try:
        return cls(**given)
    except parameters.ParameterError as error:
        raise error.under("mechanism") from None
    except ValueError as error:
        raise ConfigError(f"mechanism: {error}") from None
