"""`report.json`: what a run may publish, field by field, and the part of a config that may be published.

This is the list of what leaves: a field that is not here is refused. Of a config, keys on a list are shown, and values
that cannot name a file, a place or a person; of parameters, whose names may be anything, only numbers, words and names
of classes. All else is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

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


Params = Annotated[dict[str, Any], BeforeValidator(published_params)]
Method = Annotated[dict[str, Any], BeforeValidator(published_method)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Queries(_Section):
    """Label queries, as counted by the ledger."""

    asked: int = Field(description="queries charged")
    answered: int = Field(description="queries that got a label; the others got ⊥")
    max_queries: int = Field(description="most queries that could be asked, fixed before the first")
    max_answers: int = Field(description="most queries that could be answered, fixed before the first")
    adaptive: bool = Field(
        default=False, description="whether later queries were chosen, or later teachers made, by earlier answers"
    )
    rounds: tuple[int, ...] = Field(
        default=(), description="of teachers: the most queries of each, where there are any"
    )


class Sanitised(_Section):
    """An upper bound on what this run's answers cost, released with noise: an ε that is part of the output."""

    epsilon: float = Field(description="bounds the cost of all that was released, this figure included")
    delta: float
    order: float = Field(description="Rényi order, fixed before the first query")
    rdp_bound: float = Field(description="released bound on the labels' Rényi cost at that order")
    release_rdp: float = Field(description="Rényi cost of releasing this figure")


class RelatedRuns(_Section):
    """What all runs on the same private data cost that were known when this one began, by composition of their limits.

    Runs are known if they lie in the same folder and name the same private file; which they are is not published.
    """

    epsilon: float
    delta: float
    others: int = Field(description="other runs that are counted one by one")
    uncounted: int = Field(description="other runs whose cost is not known, and not in ε")
    shared_ledger: bool = Field(
        description="whether ε counts the whole budget of a shared ledger, in place of this run and all others in it"
    )
    unit: Literal["record", "id"] = Field(description="id where all runs protect all records of one id together")


class Privacy(_Section):
    """The guarantee that holds for every data set."""

    epsilon: float = Field(description="cost of the limits, whatever was realised: the ε to publish")
    delta: float
    unit: Literal["record", "id"] = Field(
        description="whom ε protects: one record, or all records of one id; `statement` says against which changes"
    )
    statement: str = Field(description="the guarantee in words")
    sanitised: Sanitised | None = Field(default=None, description="only if budget.sanitise asked for it")
    epsilon_added_or_removed: float | None = Field(
        default=None, description="ε if records are only added or removed, where ε is for changed ones too"
    )
    together: RelatedRuns | None = Field(default=None, description="only where other runs on the same data are known")


class Agreement(_Section):
    """Agreement with released labels that a student was not taught, where there are no test labels."""

    share: float = Field(description="of held-out released labels, agreed with; wrong labels lower it")
    error: float = Field(description="standard error of that share")
    mean_over_classes: float = Field(description="mean over the classes of the share of their labels")
    commonest: float = Field(description="share that always saying the commonest label would agree with")
    labels: int = Field(description="labels that were held out, each from one of the students tried")


class Calibration(_Section):
    """How sure the model is on test examples beside how often it is right."""

    error: float = Field(description="mean distance between the two, over examples")
    bins: tuple[tuple[float, float, int], ...] = Field(
        description="in tenths of sureness: how sure on average, share that is right, examples"
    )


class ReleasedLabels(_Section):
    """The labels that a run released; of examples with several, the likeliest."""

    by_class: tuple[int, ...] = Field(description="how many say each class, in the order of `classes`")
    commonest_share: float = Field(description="share of the commonest class among them")
    expected_shares: tuple[float, ...] | None = Field(
        default=None,
        description="where labels have weights: share of each class, by the weights of all labels of all examples",
    )


class Group(_Section):
    """Test examples with one value of a public column, and how right a model is on them."""

    column: str
    value: str = Field(description="as listed; test examples with no listed value are 'other'")
    examples: int = Field(description="test examples in it")
    too_few: bool = Field(description="whether these are too few to tell anything: fewer than 30")
    accuracy: float | None = Field(description="share of them that is right; null where there are none")
    error: float | None = Field(description="standard error of that share")
    balanced_accuracy: float | None = Field(description="mean over its classes of the share that is recognised")
    recall: tuple[float | None, ...] = Field(
        description="share of each class in it that is recognised, in the order of `classes`; null where there is none"
    )
    class_examples: tuple[int, ...] = Field(description="test examples of each class in it")


class Student(_Section):
    """The model that may leave."""

    name: str
    test_examples: int
    accuracy: float | None = Field(description="share of test examples it gets right; null without test labels")
    test_digest: str | None = Field(default=None, description="equal for equal test sets")
    confusion: tuple[tuple[int, ...], ...] | None = Field(
        default=None, description="test examples by true class (rows) and predicted class (columns)"
    )
    balanced_accuracy: float | None = Field(
        default=None, description="mean over classes of the share of their test examples that it recognises"
    )
    recall: tuple[float | None, ...] | None = Field(
        default=None, description="share of each class's test examples that it recognises; null where there are none"
    )
    groups: tuple[Group, ...] = Field(default=(), description="test examples by the columns under `report.groups`")
    commonest_share: float | None = Field(
        default=None, description="share of test examples that always saying the commonest class is right on"
    )
    auc: float | None = Field(
        default=None, description="area under the ROC curve; mean over classes, each against the rest"
    )
    calibration: Calibration | None = None
    public_predictions: tuple[int, ...] | None = Field(
        default=None, description="how many of up to 2,000 public examples it gives each class"
    )
    agreement: Agreement | None = Field(default=None, description="only where there are no test labels")


class TeacherKind(_Section):
    """Teachers that are made alike; how many there are follows from the configuration alone."""

    name: str
    params: Params = {}
    features: tuple[str, ...] = Field(default=(), description="public features before the classifier")
    teachers: int


class EpsilonCurves(_Section):
    """What the first queries cost at most, for every data set: from public parameters alone."""

    queries: tuple[int, ...]
    epsilon: dict[str, tuple[float | None, ...]] = Field(
        description="for each way of counting, ε after each of `queries`; null if infinite"
    )


class VotersFacts(_Section):
    """Who voted on what, and the same in words: from the config, and from how much was asked and labelled.

    A kind of voters writes it, and every page shows it.
    """

    kind: str = Field(description="what a config calls these voters")
    method: str = Field(description="the method in a few words, as a table of runs names it")
    n_teachers: int = Field(default=0, description="0 where records voted themselves")
    teachers: tuple[TeacherKind, ...] = Field(default=(), description="families of teachers, where any were trained")
    settings: Params = Field(default={}, description="what else a config says of the voters")
    labelled: int = Field(description="public examples that got a label")
    figures: tuple[tuple[str, str], ...] = Field(description="names and values for the terminal")
    counts: tuple[tuple[str, str], ...] = Field(description="names and numbers for the top of the page")
    steps: tuple[tuple[str, str], ...] = Field(
        description="from private records to labels, each step with what there is to say of it; the labels are the last"
    )
    summary: str = Field(description="what was done, in one or two sentences")
    sensitivity: str = Field(description="how little one record can change, for the privacy statement")
    limits: tuple[str, ...] = Field(description="the limits that were fixed beforehand, for the privacy statement")
    labels: str = Field(description="what labels.npz holds, for the privacy statement")


class Lost(_Section):
    """Against the model without privacy, on the same test examples."""

    share: float = Field(description="share right without privacy less the share right with it; below 0: gained")
    error: float = Field(description="standard error of that difference, taken example by example")


class GroupLost(Lost):
    """What a group lost to privacy, and what each class in it lost."""

    by_class: tuple[Lost | None, ...] = Field(description="in the order of `classes`; null where it has none of one")


class NonprivateComparison(_Section):
    """The model without privacy on the same test examples, and what each class and group lost against it."""

    balanced_accuracy: float
    recall: tuple[float | None, ...] = Field(description="as the student's")
    groups: tuple[Group, ...] = Field(default=(), description="as the student's, in the same order")
    lost: Lost = Field(description="by all test examples together")
    lost_by_class: tuple[Lost | None, ...] = Field(description="in the order of `classes`; null: no test examples")
    lost_by_group: tuple[GroupLost | None, ...] = Field(
        default=(), description="in the order of `groups`; null: no test examples"
    )


class Benchmark(_Section):
    """Only where public data plays private: figures that a run on private data would not show."""

    note: str
    label_accuracy: float | None = Field(description="share of the answered queries whose released label is right")
    nonprivate_accuracy: float | None = Field(
        description="the same test, trained on the private records without privacy"
    )
    without_privacy: NonprivateComparison | None = Field(
        default=None, description="that model class by class, by group"
    )
    public_accuracy: float | None = Field(
        default=None, description="baselines: share of the public examples that the model gets right"
    )
    public_examples: int | None = Field(default=None, description="baselines: how many those are")
    curve: tuple[tuple[int, dict[str, float]], ...] | None = Field(
        default=None, description="baselines: after how many steps which share of training and test examples was right"
    )


class Description(_Section):
    """The mechanism in words, as it describes itself from its public parameters."""

    title: str = Field(description="its name as its paper writes it")
    releases: str = Field(description="what a query releases")
    subsampled: bool = Field(default=False, description="whether a record may be in several teachers' parts")


class _AnyReport(_Section):
    schema_version: Literal[1] = 1
    name: str
    pate_version: str
    config_digest: str
    classes: tuple[str, ...]
    privacy: Privacy
    student: Student = Field(description="the released model")
    warnings: tuple[str, ...] = Field(default=(), description="what to know before using the model, in words")
    benchmark: Benchmark | None
    data: str | None = Field(default=None, description="name of the data source")
    versions: dict[str, str] = Field(default={}, description="software that the run was made with")


class Report(_AnyReport):
    """One run."""

    voters: VotersFacts
    mechanism: Method
    description: Description = Field(description="the mechanism, for people")
    queries: Queries
    anchored: bool | None = Field(
        default=None,
        description="whether the ledger was also kept outside the run, where a copy or rollback of it shows",
    )
    labels: ReleasedLabels | None = None
    public_examples: int | None = Field(default=None, description="public examples, asked about or not")
    curves: EpsilonCurves | None = None


class BaselineReport(_AnyReport):
    """One run of `pate baseline`: a private learner without teachers."""

    kind: Literal["baseline"] = "baseline"
    method: Method = Field(description="the baseline's name and parameters")
    planned: Params = Field(description="noise, sampling rate and steps, computed before training")


AnyReport = Report | BaselineReport
