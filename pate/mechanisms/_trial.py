"""A mechanism of somebody's own, tried on made-up votes before anything uses it: what is wrong with it is one line."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from typing import Any, get_type_hints

import numpy as np

from pate.accounting.composition import Guarantee
from pate.components._registry import shown
from pate.errors import ConfigError, PateError, first_line, own_line, own_path
from pate.mechanisms.base import UNANSWERED, Mechanism, Split

_VOTERS = 10  # where their number is not given
_DELTA = 1e-5
_ROUNDING = 1e-9
_PLACES = 200  # of a vote that moves
_TRIED: set[tuple[Any, ...]] = set()


def check_class(cls: Any, where: str) -> None:
    """Raise ConfigError, which names file and line, where a class is not one that a mechanism can be made of."""
    with _blamed(cls, where):
        if lacking := sorted(getattr(cls, "__abstractmethods__", ())):
            raise _Wrong(f"is an abstract class, not a mechanism; define {', '.join(lacking)}")
        if not isinstance(getattr(cls, "name", None), str) or not cls.name:
            raise _Wrong("has no name; write name: ClassVar[str] = … in the class")
        if not dataclasses.is_dataclass(cls) or not getattr(cls, "__dataclass_params__").frozen:  # noqa: B009
            raise _Wrong("is no frozen dataclass; write @dataclass(frozen=True) above the class")
        get_type_hints(cls)


def made_and_tried(cls: Any, given: Mapping[str, Any], n_voters: int | None, where: str) -> Mechanism:
    """A mechanism of these parameters that does what it has to; ConfigError, which names file and line, else."""
    with _blamed(cls, where):
        made: Mechanism = cls(**given)
    known = (cls, n_voters, *sorted(given.items()))
    if known not in _TRIED:
        _try(made, n_voters or _VOTERS, where)
        _TRIED.add(known)
    return made


def _try(mechanism: Mechanism, n: int, where: str) -> None:
    """Raise ConfigError, which names file and line, unless it answers, and says what that costs, as it has to.

    Two classes and `n` votes. An answer's probability must not change more, when one of them moves, than `worst_case`
    claims: near a tie and at some other places.
    """
    counts = np.array(sorted({(n, 0), (0, n), (n - n // 2, n // 2), (n // 2, n - n // 2)}), dtype=np.int64)
    for method, check in (
        ("noise_draws", lambda: _whole(mechanism.noise_draws(2), least=0)),
        ("log_outcomes", lambda: _log_probabilities(mechanism.log_outcomes(counts), mechanism, len(counts))),
        ("release", lambda: _answers(mechanism.begin().answer(counts), mechanism, len(counts))),
        ("worst_case", lambda: _more_cost_more(*(_epsilon(mechanism.worst_case(k, k), _DELTA) for k in (1, 2)))),
        ("log_outcomes", lambda: _claims_enough(mechanism, n)),
        ("rdp_per_query", lambda: _pair_or_none(mechanism.rdp_per_query(8.0))),
        ("split", lambda: _is_a(mechanism.split(n), Split)),
        ("title", lambda: _is_a(mechanism.title, str)),
        ("note", lambda: _is_a(mechanism.note, str)),
        ("describe", lambda: _is_a(mechanism.describe(), str)),
    ):
        with _blamed(type(mechanism), where, method):
            check()


class _Wrong(Exception):
    """What a mechanism does wrong, in words that follow its name."""


@contextmanager
def _blamed(cls: Any, where: str, method: str | None = None) -> Iterator[None]:
    """Say in which line of whose file an error is; one that the mechanism words for its users passes as it is."""
    try:
        yield
    except (PateError, ValueError) as error:
        if method is None and not isinstance(error, _Wrong):
            raise
        problem: Exception = error
    except Exception as error:  # a user's own file may be wrong in any way
        problem = error
    else:
        return
    if isinstance(problem, _Wrong):
        place, text = _defined(cls, method), f"{method} {problem}" if method else str(problem)
    else:
        text = f"{f'{method}: ' if method else ''}{type(problem).__name__}: {first_line(problem)}"
        place = own_line(problem) or _defined(cls, method)
    raise ConfigError(f"{where}: {place}: {text}") from None


def _defined(cls: Any, method: str | None) -> str:
    """Where a class, or a method that it may have inherited, is written."""
    found = inspect.getattr_static(cls, method, None) if method is not None else None
    found = found.fget if isinstance(found, property) else found
    try:
        for thing in (found, cls):
            if thing is not None and (place := own_path(inspect.getsourcefile(thing) or "")) is not None:
                return f"{place}, line {max(1, inspect.getsourcelines(thing)[1])}"
    except (OSError, TypeError):  # it was typed in, or made
        pass
    return f"module {cls.__module__}"


def _is_a(value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise _Wrong(f"must give a {kind.__name__}, not {shown(value)}")


def _whole(value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise _Wrong(f"must give a whole number of at least {least}, not {shown(value)}")


def _log_probabilities(found: Any, mechanism: Mechanism, queries: int) -> None:
    array = np.asarray(found)
    if array.dtype.kind != "f" or array.shape != (queries, 3):
        raise _Wrong(
            f"must give logarithms float[{queries} queries, 2 classes and ⊥], not {array.dtype}{list(array.shape)}"
        )
    totals = np.exp(array).sum(axis=1)
    if not np.allclose(totals, 1, atol=1e-6):
        worst = float(totals[np.argmax(np.nan_to_num(np.abs(totals - 1), nan=np.inf))])
        raise _Wrong(f"must give logarithms of probabilities that sum to 1, not to {worst:.6g}")
    if not mechanism.may_decline and (array[:, -1] > -np.inf).any():
        raise _Wrong("gives ⊥ a probability, though may_decline is not set")


def _answers(found: Any, mechanism: Mechanism, queries: int) -> None:
    array = np.asarray(found)
    if array.dtype.kind not in "iu" or array.ndim != 1 or not len(array) <= queries:
        raise _Wrong(f"must give one whole number for each of {queries} queries, not {array.dtype}{list(array.shape)}")
    if len(array) < queries and not mechanism.priced_as_stream:
        raise _Wrong(f"gives {len(array)} answers to {queries} queries")
    fewest = UNANSWERED if mechanism.may_decline else 0
    if len(array) and not (fewest <= array.min() and array.max() < 2):
        raise _Wrong(f"must give numbers of classes from {fewest} to 1, not {array.min()} to {array.max()}")


def _more_cost_more(one: float, two: float) -> None:
    if one > two * (1 + 1e-3):
        raise _Wrong(f"says that one query costs ε = {one:.4g} and two {two:.4g}; more queries cannot cost less")


def _epsilon(guarantee: Any, delta: float) -> float:
    if not isinstance(guarantee, Guarantee):
        raise _Wrong(
            f"must give a Guarantee, such as RdpGuarantee or FixedGuarantee of pate.accounting.composition, not "
            f"{shown(guarantee)}"
        )
    found = guarantee.epsilon(delta)
    if isinstance(found, bool) or not isinstance(found, Real) or math.isnan(found) or found < 0:
        raise _Wrong(f"gives a Guarantee whose epsilon({delta:g}) is {shown(found)}, not a number of at least 0")
    return float(found)


def _claims_enough(mechanism: Mechanism, n: int) -> None:
    """For each two histograms a vote apart: the probability of no set of answers may change by more than is claimed."""
    if not mechanism.has_exact_cost:
        return
    near_a_tie = np.arange(max(0, n // 2 - 2), min(n, n // 2 + 2))
    for_one = np.union1d(np.linspace(0, n - 1, min(n, _PLACES)).round(), near_a_tie).astype(np.int64)
    counts, moved = (np.stack([most, n - most], axis=1) for most in (for_one, for_one + 1))
    ways = [np.exp(mechanism.log_outcomes(each)) for each in (counts, moved)]
    for delta in (_DELTA, 1e-2):
        claimed = _epsilon(mechanism.worst_case(1, 1), delta)
        for p, q in (ways, ways[::-1]):  # the δ that (claimed, δ) needs; none where nothing is claimed
            excess = np.maximum(p - math.exp(min(claimed, 700)) * q, 0).sum(axis=1)
            needed = float(excess.max()) if math.isfinite(claimed) else 0.0
            if needed > delta * (1 + 1e-6) + _ROUNDING:
                raise _Wrong(
                    f"and worst_case disagree: where a vote moves, ε = {claimed:.4g} holds with δ = {needed:.3g} only, "
                    f"and worst_case claims it at δ = {delta:g}"
                )


def _pair_or_none(found: Any) -> None:
    if found is None:
        return
    pair = isinstance(found, tuple) and len(found) == 2
    if not pair or not all(isinstance(one, Real) and float(one) >= 0 for one in found):
        raise _Wrong(f"must give two costs, of a query and of an answer, or None, not {shown(found)}")
