"""The sections of a config, and how a file becomes them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator

from pate.accounting import parameters
from pate.config.components import Component, Model, TeacherFamily
from pate.config.neighbours import NeighbourSettings
from pate.config.plain_yaml import MOST_DEPTH, dump_yaml, parse_yaml, read_yaml
from pate.data.settings import AnyData, DataSettings, Settings, Several
from pate.errors import ConfigError
from pate.naming import dotted, make_importable, nearest, shown

if TYPE_CHECKING:
    from pate.mechanisms import Mechanism
    from pate.neighbours.rounds import Round


MOST_TEACHERS = 100_000
MOST_ASKED = 10_000_000
"""Far above what anybody runs, and low enough that nothing fills the memory before it says so."""


def _checked(check: Callable[[object], Any]) -> BeforeValidator:
    """A field whose value `pate.accounting.parameters` judges; the config says the key itself."""

    def validate(value: object) -> Any:
        try:
            return check(value)
        except parameters.ParameterError as error:
            raise ValueError(error.wanted) from None

    return BeforeValidator(validate)


Epsilon = Annotated[float, _checked(parameters.epsilon)]
Delta = Annotated[float, _checked(parameters.delta)]
Order = Annotated[float, _checked(parameters.order)]
Positive = Annotated[float, _checked(lambda value: parameters.positive(value, ""))]
Count = Annotated[int, _checked(lambda value: parameters.whole(value, "", least=1, most=MOST_ASKED))]
Seed = Annotated[int, _checked(parameters.seed)]
Teachers = Annotated[int, _checked(lambda value: parameters.whole(value, "", least=2, most=MOST_TEACHERS))]


class Sanitise(Settings):
    """Release an upper bound on the data-dependent ε, with noise; all of this is fixed before the first query."""

    order: Order
    beta: Positive
    sigma_ss: Positive = 4.0


class LedgerName(Settings):
    """A ledger that runs on the same data share, as `pate ledger create` prints it.

    The path is taken from the config's folder; the identity makes sure that it is that ledger.
    """

    path: str
    id: str


class Budget(Settings):
    """Limits that are fixed before the first query; their cost is the publishable ε."""

    delta: Delta = 1e-5
    asked: Count = 100
    answered: Count | None = None
    query_order: Literal["given", "clusters", "doubt"] = "given"
    rounds: int = Field(default=4, ge=2, le=1000)
    epsilon: Epsilon | None = None
    sanitise: Sanitise | None = None
    ledger: LedgerName | None = None

    @model_validator(mode="before")
    @classmethod
    def _named_by_identity(cls, content: Any) -> Any:
        if isinstance(content, Mapping) and "order" in content:
            raise ValueError("order: is called query_order now (order is a Rényi order elsewhere); write query_order")
        if isinstance(content, Mapping):
            old = next((key for key in ("ledger_epsilon", "ledger_delta", "ledger_order") if key in content), None)
            if old or isinstance(content.get("ledger"), str):
                raise ValueError(
                    f"{old or 'ledger'}: a shared ledger holds its budget itself and is named by an id; make it once "
                    "with `pate ledger create PATH --epsilon E --delta D --order A` and paste what that prints"
                )
        return content

    @model_validator(mode="after")
    def _shared_ledger_counts_labels(self) -> Budget:
        if self.ledger is not None and self.sanitise is not None:
            raise ValueError("a shared ledger does not count what sanitise costs; use one or the other")
        return self

    @model_validator(mode="after")
    def _rounds_fit(self) -> Budget:
        if self.adaptive and self.sanitise is not None:
            raise ValueError(
                "query_order 'doubt' has no data-dependent cost that sanitise could bound; use one or the other"
            )
        if self.adaptive and self.rounds > self.asked:
            raise ValueError(f"rounds = {self.rounds}: more than the {self.asked} queries to ask")
        return self

    @property
    def adaptive(self) -> bool:
        """Whether later queries depend on earlier answers."""
        return self.query_order == "doubt"

    @property
    def most_answered(self) -> int:
        """The limit on answered queries: as many as are asked where nothing else is said."""
        return self.asked if self.answered is None else min(self.answered, self.asked)


class RaySettings(Settings):
    """Every Ray knob.

    With `wait_for_workers` seconds, a cluster that grows is asked for room for all `workers` before the run begins.
    """

    workers: int | None = Field(default=None, ge=1, le=MOST_TEACHERS)
    cpus_per_worker: float = Field(default=1.0, gt=0)
    gpus_per_worker: float = Field(default=0.0, ge=0)
    wait_for_workers: float = Field(default=0.0, ge=0)
    seconds_per_teacher: float | None = Field(default=None, gt=0)


class RunConfig(Settings):
    """What every kind of run has."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9_.-]+$", max_length=100)
    seed: Seed = 0
    data: DataSettings

    def check(self) -> None:
        """Raise ConfigError where values do not go together."""

    def digest(self) -> str:
        """Equal for equal settings; what a run directory is known by.

        Where and how Ray runs is left out, and where a shared ledger is: that it is the one, its identity says.
        """
        content = self.model_dump(mode="json", exclude={"ray": True, "backend": True, "budget": {"ledger": {"path"}}})
        if content.get("voters") == "teachers":  # a config that says nothing of voters is the one it always was
            del content["voters"], content["neighbours"]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def to_yaml(self) -> str:
        """The resolved settings."""
        return dump_yaml(self.model_dump(mode="json"))


class BaselineBudget(Settings):
    """What a baseline may spend; without `epsilon` its own noise parameter decides."""

    epsilon: Epsilon | None = None
    delta: Delta = 1e-5


class BaselineConfig(RunConfig):
    """A private learner without teachers, on the same data."""

    baseline: Component
    budget: BaselineBudget = BaselineBudget()
    records: Count | None = None
    nonprivate: Component | None = None


class Config(RunConfig):
    """One run of PATE."""

    voters: Literal["teachers", "neighbours"] = "teachers"
    n_teachers: Teachers = 0
    teachers: Several[TeacherFamily] = ()
    neighbours: NeighbourSettings | None = None
    mechanism: dict[str, Any]
    budget: Budget = Budget()
    student: Component
    nonprivate: Model | None = None
    backend: Literal["ray", "local"] = "ray"
    ray: RaySettings = RaySettings()

    @model_validator(mode="after")
    def _teachers_or_votes(self) -> Config:
        if self.voters == "neighbours":
            return self._neighbours_alone()
        if self.neighbours is not None:
            raise ValueError("neighbours: is for `voters: neighbours`; add that, or leave it out")
        if not self.n_teachers:
            raise ValueError("n_teachers: missing; add it to the config")
        if self.data.source != "votes":
            if not self.teachers:
                raise ValueError("teachers: missing; add at least one family to the config")
        elif self.teachers or self.nonprivate is not None:
            raise ValueError(
                "data.source = 'votes': there are no private records, so leave out teachers and nonprivate"
            )
        return self

    def _neighbours_alone(self) -> Config:
        """Without anything that is about teachers, or about single queries."""
        if self.neighbours is None:
            raise ValueError("neighbours: missing; voters: neighbours needs to know the cells")
        about_teachers = {"n_teachers": self.n_teachers, "teachers": self.teachers}
        about_queries = sorted(self.budget.model_fields_set - {"delta", "epsilon", "ledger"})
        for key in [key for key, value in about_teachers.items() if value] + [f"budget.{key}" for key in about_queries]:
            raise ValueError(f"{key}: is for voters: teachers; leave it out")
        if self.data.source == "votes":
            raise ValueError("data.source = 'votes': there are no private records that could vote")
        return self

    def build_rounds(self) -> tuple[Round, ...]:
        """The rounds of votes, where records vote themselves."""
        from pate.mechanisms import build
        from pate.neighbours.rounds import Round, guarantee

        assert self.neighbours is not None
        rounds = tuple(
            Round(one.queries, build({**self.mechanism, **one.parameters()}), one.features == "student")
            for one in self.neighbours.all_rounds()
        )
        guarantee(rounds, self.neighbours.votes)
        return rounds

    def build_mechanism(self) -> Mechanism:
        """The configured mechanism, checked against the rest."""
        from pate.mechanisms import build

        budget = self.budget
        mechanism = build(self.mechanism, self.n_teachers)
        mechanism.check(budget.asked, budget.delta, self.n_teachers)
        if budget.sanitise is not None:
            from pate.accounting.composition import RdpGuarantee
            from pate.accounting.sanitise import check_release

            sanitise, noise = budget.sanitise, mechanism.sanitised_noise
            labels = mechanism.worst_case(budget.asked, budget.most_answered)
            if noise is None or not isinstance(labels, RdpGuarantee):
                raise ConfigError(f"budget.sanitise: there is none for {mechanism.name}, only for (confident_)gnmax")
            try:
                check_release(labels, noise, sanitise.order, sanitise.beta, sanitise.sigma_ss, budget.delta)
            except parameters.ParameterError as error:
                raise error.under("budget.sanitise") from None
            except ValueError as error:
                raise ConfigError(f"budget.sanitise: {error}") from None
        return mechanism

    def check(self) -> None:
        self.build_mechanism()
        if self.voters == "neighbours":
            self.build_rounds()


Kind = TypeVar("Kind", bound=RunConfig)


def default_config_path(name: str = "digits") -> Path:
    """A config that comes with the package, by default the embedded digits run; in the checkout or installed."""
    package = Path(__file__).parents[1]
    packaged = package / "configs" / f"{name}.yaml"
    return packaged if packaged.exists() else package.parent / "configs" / f"{name}.yaml"


def load_config(path: Path | str | None = None, overrides: Iterable[str] = ()) -> Config:
    """Read a YAML file (the embedded digits run where none is given) and apply `key=value` overrides."""
    if path is None:
        return _load(default_config_path(), overrides, Config)
    make_importable(Path(path).parent)  # a mechanism may be in a file beside it
    return _load(Path(path), overrides, Config)


def load_baseline_config(path: Path | str, overrides: Iterable[str] = ()) -> BaselineConfig:
    """The same for `pate baseline`."""
    return _load(Path(path), overrides, BaselineConfig)


def _load(path: Path, overrides: Iterable[str], kind: type[Kind]) -> Kind:
    content = read_yaml(path)
    for override in overrides:
        _override(content, override)
    return parse_config(content, kind)


def parse_config(content: Mapping[str, Any], kind: type[Kind] = Config) -> Kind:  # type: ignore[assignment]
    """Settings from plain values, checked down to the mechanism's parameters."""
    if "baseline" in content and kind is Config:
        raise ConfigError("baseline: this config is for `pate baseline`, not for `pate run`")
    if "teachers" in content and kind is BaselineConfig:
        raise ConfigError("teachers: this config is for `pate run`, not for `pate baseline`")
    try:
        config = kind.model_validate(content)
    except ValidationError as error:
        raise ConfigError(_one_line(error, content, kind)) from None
    config.check()
    return config


def _override(content: dict[str, Any], text: str) -> None:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {text}: write key=value, for example --set mechanism.sigma=30")
    *parents, last = names = key.split(".")
    if len(names) > MOST_DEPTH:
        raise ConfigError(f"--set {shown(key)}: nested more than {MOST_DEPTH} deep")
    place: Any = content
    for name in parents:
        place = place.setdefault(name, {}) if isinstance(place, dict) else place[_index(place, name, key)]
    index = last if isinstance(place, dict) else _index(place, last, key)
    place[index] = parse_yaml(value, f"--set {dotted(names)}")


def _index(place: Any, name: str, key: str) -> int:
    """Where in the list `place` the entry `name` is."""
    if isinstance(place, list) and name in (numbers := list(map(str, range(len(place))))):
        return numbers.index(name)
    raise ConfigError(f"--set {shown(key)}: there is no {shown(name)} at that place")


def _one_line(error: ValidationError, content: Any, kind: type[Settings]) -> str:
    errors = error.errors(include_url=False)
    first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])  # a misspelt key is also missing
    path = _place(first["loc"], content)
    key = dotted(path) or "config"
    if first["type"] == "extra_forbidden":
        return f"{key}: unknown key; {nearest(str(path[-1]), _known_keys(first['loc'], kind))}"
    if first["type"] == "missing":
        return f"{key}.{first['loc'][-1]}: missing; add it to the config".removeprefix("config.")
    if first["type"] == "union_tag_invalid":
        source = first["input"].get("source")
        return f"data.source = {shown(source)}: no such source; {nearest(str(source), _SOURCES)}"
    if first["type"] == "union_tag_not_found":
        return f"data.source: missing; known are {', '.join(sorted(_SOURCES))}"
    message = " or ".join(dict.fromkeys(_message(e) for e in errors if _place(e["loc"], content) == path))
    if not path:
        return message
    value = first["input"]
    if isinstance(value, bool):
        message += " (YAML takes yes, no, on and off for true and false: put names into quotes)"
    return f"{key}: {message}" if isinstance(value, (dict, BaseModel)) else f"{key} = {shown(value)}: {message}"


def _message(error: Any) -> str:
    message = error["msg"].removeprefix("Value error, ")
    return f"{message[0].lower()}{message[1:]}"


def _place(location: Iterable[int | str], content: Any) -> list[int | str]:
    """Where in `content` an error is; pydantic's `location` also names the types it tried on the way."""
    path: list[int | str] = []
    for part in location:
        if path == ["data"] and isinstance(content, Mapping) and part == content.get("source"):
            continue  # the kind of data, which may also be the name of a key
        inside = range(len(content)) if isinstance(content, (list, tuple)) else content
        if isinstance(inside, (Mapping, range)) and part in inside:
            content = content[part]
            path.append(part)
    return path


_DATA_MODELS: dict[str, type[Settings]] = {
    source: model for model in get_args(AnyData) for source in get_args(model.model_fields["source"].annotation)
}
_SOURCES = frozenset(_DATA_MODELS)


def _known_keys(location: tuple[int | str, ...], kind: type[Settings]) -> Iterable[str]:
    """The keys of the section that the last part of `location` was looked for in."""
    section = kind
    for part in location[:-1]:
        if part in _SOURCES:  # pydantic names the kind of data after 'data'
            section = _DATA_MODELS[str(part)]
        elif part in section.model_fields and part != "data":
            section = _section_in(section.model_fields[str(part)].annotation)
    return section.model_fields


def _section_in(annotation: Any) -> type[Settings]:
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return annotation
    return next(_section_in(inner) for inner in get_args(annotation) if inner not in (type(None), ...))
