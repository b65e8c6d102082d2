"""Sections of a config that name a class and its parameters."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from pate.data._settings import Settings, Several

_MAX_WORKERS = 100_000
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", re.IGNORECASE)


def _checked_gpus(value: str | float) -> str | float:
    """A share of one GPU, or whole ones."""
    if isinstance(value, float | int):
        if value < 0:
            raise ValueError("must be 'auto' or at least 0")
        if value > 1 and value != int(value):
            raise ValueError(f"{value:g} GPUs: more than one must be a whole number of them")
    return value


_Gpus = Annotated[Literal["auto"] | float, AfterValidator(_checked_gpus)]


def _in_bytes(value: Any) -> Any:
    """`2GB` is 2 · 10⁹ bytes, `2GiB` 2 · 2³⁰."""
    if not isinstance(value, str):
        return value
    found = _SIZE.fullmatch(value)
    if found is None:
        raise ValueError("must be a number of bytes, or a size such as 2GB")
    return int(float(found[1]) * _UNITS[found[2].upper()])


Bytes = Annotated[int, BeforeValidator(_in_bytes)]


class Workers(Settings):
    """How many workers a run has.

    Parameters
    ----------
    min : int, default=1
        As many are waited for at the beginning.
    max : int, optional
        At most so many; as many as there are jobs if left out.
    """

    min: int = Field(default=1, ge=1, le=_MAX_WORKERS)
    max: int | None = Field(default=None, ge=1, le=_MAX_WORKERS)

    @model_validator(mode="before")
    @classmethod
    def _a_number_is_the_most(cls, content: Any) -> Any:
        if content is None:
            return {}
        return {"max": content} if isinstance(content, int | float) and not isinstance(content, bool) else content

    @model_validator(mode="after")
    def _min_is_not_more(self) -> Workers:
        if self.max is not None and self.min > self.max:
            raise ValueError(f"min = {self.min}: more than max = {self.max}")
        return self


class Resources(Settings):
    """What a worker of one family has. What is left out comes from `ray`.

    Parameters
    ----------
    cpus : float, optional
        CPUs.
    gpus : float or "auto", optional
        GPUs, or a share of one; "auto" by what the family can use.
    memory : int or str, optional
        Bytes, or a size such as `2GB`.
    accelerator_type : str, optional
        Of the GPU, as Ray names it.
    labels : mapping of str to str, default={}
        Labels that Ray's node must have.
    custom : mapping of str to float, default={}
        Resources as nodes were started with.
    """

    cpus: float | None = Field(default=None, ge=0)
    gpus: _Gpus | None = None
    memory: Bytes | None = Field(default=None, gt=0)
    accelerator_type: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_.-]+$")
    labels: dict[str, str] = Field(default_factory=dict)
    custom: dict[str, float] = Field(default_factory=dict)

    @field_validator("custom")
    @classmethod
    def _amounts(cls, value: dict[str, float]) -> dict[str, float]:
        for name, amount in value.items():
            if amount <= 0:
                raise ValueError(f"{name} = {amount:g}: must be more than 0")
            if name in ("CPU", "GPU", "memory"):
                raise ValueError(f"{name}: has a key of its own (cpus, gpus, memory)")
        return value


class RaySettings(Settings):
    """How Ray is used. A run that has no workers, at its beginning or because all were lost, can go on later.

    Parameters
    ----------
    workers : int or Workers, default=Workers()
        How many; `4` is short for `{min: 1, max: 4}`.
    cpus_per_worker : float, default=1.0
        CPUs of each.
    gpus_per_worker : float or "auto", default="auto"
        GPUs of each whose family can use one; others get none.
    worker_timeout_seconds : float, default=600.0
        How long a run that has no worker waits for one.
    teacher_timeout_seconds : float, optional
        A teacher that takes longer counts as hanging; no limit if left out.
    memory_per_reader : int or str, default=500000000
        Bytes that each reader of private shards is given: a node has no more readers than its memory is enough for.
    """

    workers: Workers = Workers()
    cpus_per_worker: float = Field(default=1.0, gt=0)
    gpus_per_worker: _Gpus = "auto"
    worker_timeout_seconds: float = Field(default=600.0, ge=1)
    teacher_timeout_seconds: float | None = Field(default=None, gt=0)
    memory_per_reader: Bytes = Field(default=500_000_000, gt=0)


MAX_KINDS = 1_000


def listed(value: Any) -> Any:
    """One component or several, each by its name or whole."""
    steps = value if isinstance(value, (list, tuple)) else [value]
    return [{"name": step} if isinstance(step, str) else step for step in steps]


def is_estimator(value: Any) -> bool:
    """Whether it is an object with `fit` and `predict`, and not a class."""
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in ("fit", "predict"))


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("names repeat; name each column once")
    return names


Columns = Annotated[Several[str], AfterValidator(_each_once)]


class Component(Settings):
    """A student or a baseline: short name or dotted path, and its parameters.

    From Python it may stand for an object in memory, its `prototype`, of which copies are made. A file never says so.

    Parameters
    ----------
    name : str
        A short name, or the dotted path of a class.
    params : mapping, default={}
        Arguments of its constructor.
    """

    name: str
    params: dict[str, Any] = Field(default_factory=dict)
    _prototype: Any = PrivateAttr(default=None)

    @property
    def prototype(self) -> Any:
        """The object that is copied, where name and parameters alone would not make it again; else None."""
        return self._prototype

    def copied_from(self, prototype: Any) -> Self:
        """This component, made by copying `prototype`."""
        changed = self.model_copy()
        changed._prototype = prototype
        return changed


class Model(Component):
    """A classifier that may have public features before it.

    Parameters
    ----------
    features : str or list, default=[]
        Transforms that come first: names, or names and parameters.
    """

    features: Several[Component] = ()

    _listed = field_validator("features", mode="before")(listed)


class TeacherFamily(Model):
    """One family of the mixture of teachers.

    From Python, `TeacherFamily(estimator=SVC(C=10))` says the same as the name and parameters would. An estimator that
    no name and plain parameters describe (of a class in a notebook, with a parameter that is NaN) is copied.

    Parameters
    ----------
    weight : float, default=1.0
        Its share of the teachers, relative to other families.
    grid : mapping of str to list, default={}
        Parameters that take each listed value, in equal shares.
    resources : Resources, default=Resources()
        What its workers have.
    """

    weight: float = Field(default=1.0, gt=0, le=1e6)
    grid: dict[str, Several[Any]] = Field(default_factory=dict)
    resources: Resources = Resources()

    @model_serializer(mode="wrap")
    def _without_what_was_not_said(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = handler(self)
        if self.resources == Resources():
            content.pop("resources", None)
        return content

    @model_validator(mode="wrap")
    @classmethod
    def _from_estimator(cls, content: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        estimator = content.get("estimator") if isinstance(content, dict) else content
        if not is_estimator(estimator):
            return handler(content)
        from pate.teachers import described_or_kept

        rest = {key: value for key, value in content.items() if key != "estimator"} if isinstance(content, dict) else {}
        written, kept = described_or_kept(estimator)
        family = handler(written | rest)
        family._prototype = kept
        return family

    @field_validator("grid")
    @classmethod
    def _something_to_vary(cls, value: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
        if empty := [name for name, values in value.items() if not values]:
            raise ValueError(f"{empty[0]}: give at least one value")
        kinds = math.prod(map(len, value.values()))
        if kinds > MAX_KINDS:
            raise ValueError(f"these values make {kinds:,} kinds of teachers; {MAX_KINDS:,} are the most")
        return value
