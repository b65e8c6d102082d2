"""The part of a config that may be published: keys on a list, and values that cannot name a file, a place or a person.

A key that is not on the list is left out, and so is text that is more than one word or the path of a class.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

LEFT_OUT = "<left out>"
"""Stands where a value is not published."""

_TEXT = re.compile(r"[A-Za-z0-9_+-]{1,40}|([A-Za-z_]\w*\.)+[A-Z]\w*")  # rbf, l2, sklearn.svm.SVC; not patients.csv
_AS_THEY_ARE = {"name", "seed", "voters", "n_teachers", "records", "backend", "report"}
_MODELS = {"teachers", "student", "nonprivate", "baseline"}
_SECTIONS = {
    "mechanism": None,  # every key: they are the mechanism's own, and numbers
    "data": {"source", "images", "read_by", "ids", "id_type", "public_record_count"},
    "budget": {"delta", "max_queries", "max_answers", "query_selection", "active_rounds"}
    | {"epsilon", "sanitise", "allow_large_delta"},
    "neighbours": {"components", "standardise", "votes_per_record", "cells", "rounds", "label", "min_vote_share"}
    | {"soft", "refine", "features"},
    "ray": {"workers", "cpus_per_worker", "gpus_per_worker", "memory_per_reader"}
    | {"worker_timeout_seconds", "teacher_timeout_seconds"},
}
_ON_THE_STUDENTS_CARD = {"classes", "label", "categories", "missing_values"}  # of data, and columns of report.groups


def published_yaml(config: Mapping[str, Any]) -> str:
    """The settings that may be published, as a config is written."""
    return yaml.safe_dump(published_config(config), sort_keys=False, allow_unicode=True)


def published_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that may be published, and `LEFT_OUT` in place of all others.

    >>> published_config({"seed": 1, "data": {"source": "csv", "private": "hiv.csv"}, "notes": "of Mrs Smith"})
    {'seed': 1, 'data': {'source': 'csv', 'private': '<left out>'}, 'notes': '<left out>'}
    """
    return {key: _published(key, value) for key, value in config.items()}


def published_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that may be published by dotted key; those that are left out are absent.

    >>> published_settings({"seed": 1, "data": {"source": "csv", "private": "hiv.csv"}})
    {'seed': 1, 'data.source': 'csv'}
    """
    found: dict[str, Any] = {}

    def add(value: Any, path: str) -> None:
        if isinstance(value, Mapping) and value:
            for key, inner in value.items():
                add(inner, f"{path}.{key}" if path else str(key))
        elif value != LEFT_OUT:
            found[path] = value

    add(published_config(config), "")
    return found


def published_params(params: Any) -> Any:
    """Parameters of a model: numbers, words and paths of classes, however deep they are.

    >>> published_params({"C": 10, "kernel": "rbf", "table": "hiv.csv", "steps": [["svc", {"name": "svm.SVC"}]]})
    {'C': 10, 'kernel': 'rbf', 'table': '<left out>', 'steps': [['svc', {'name': 'svm.SVC'}]]}
    """
    if isinstance(params, Mapping):
        return {published_params(key): published_params(value) for key, value in params.items()}
    if isinstance(params, list | tuple):
        return [published_params(item) for item in params]
    if params is None or isinstance(params, bool | int | float):
        return params
    return params if isinstance(params, str) and _TEXT.fullmatch(params) else LEFT_OUT


def published_method(method: Any) -> Any:
    """A component written flat: its own name, and its parameters."""
    if not isinstance(method, Mapping):
        return method
    return {key: value if key == "name" else published_params(value) for key, value in method.items()}


def _published(key: str, value: Any) -> Any:
    if not value or key in _AS_THEY_ARE:  # nothing was said
        return value
    if key in _MODELS:
        return [_model(item) for item in value] if isinstance(value, list) else _model(value)
    if key == "teacher_rounds" and isinstance(value, list):
        return [_round(item) for item in value]
    if key in _SECTIONS and isinstance(value, Mapping):
        shown = _SECTIONS[key]
        return {name: _item(key, name, item, shown is None or name in shown) for name, item in value.items()}
    return LEFT_OUT


def _item(section: str, name: str, value: Any, shown: bool) -> Any:
    if not value or (section == "data" and name in _ON_THE_STUDENTS_CARD):
        return value
    return published_params(value) if shown else LEFT_OUT


def _round(one: Any) -> Any:
    """What is published of one round of teachers: the number of queries, and its teachers."""
    if not isinstance(one, Mapping):
        return LEFT_OUT
    shown = {"queries", "features"}
    return {key: published_params(value) if key in shown else _published(key, value) for key, value in one.items()}


def _model(model: Any) -> Any:
    """A classifier's name is that of a class; the names of its features too."""
    if not isinstance(model, Mapping):
        return LEFT_OUT
    shown = {"params", "features", "weight", "grid"}
    return {
        key: value if key == "name" else published_params(value) if key in shown else LEFT_OUT
        for key, value in model.items()
    }
