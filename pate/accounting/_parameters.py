"""The one place that says which values a privacy parameter may have: for the config, the command line and the library.

Every function takes a value and the key it is known by, and gives the value back as a plain number; what makes no
sense (a negative count, a δ of 2, NaN, text, True) raises one line that names the key, the value and what would do.
A figure computed from nonsense would look like any other, and be too small.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.errors import ConfigError, DataError
from pate.noise import MAX_NOISE, MIN_NOISE

MAX_QUERIES = 10**9
MAX_VOTES = 10**6
"""Most votes of a histogram: what an accountant tabulates grows with their number."""

MAX_CLASSES = MAX_VOTES
MAX_EPSILON = 1e6
MIN_DELTA = 1e-100  # far below the error of any sampler; what is smaller cannot be divided by
MIN_CLIP_NORM = 1e-12  # far above what single precision can square: entries whose squares it loses never add up to it
MAX_SEED = 2**32 - 1
"""What numpy, scikit-learn and torch all take as a seed."""

_THOUSANDS = re.compile(r"[1-9][0-9]{0,2}(,[0-9]{3}){1,6}", re.ASCII)
_NEARLY_A_NUMBER = re.compile(r"(?P<digits>[+-]?[0-9]{1,20}([.,][0-9]{1,20})?)\s?(?P<percent>%?)", re.ASCII)


class ParameterError(ConfigError, ValueError):
    """A value that a privacy parameter cannot have."""

    def __init__(self, key: str, value: object, wanted: str) -> None:
        super().__init__(key, value, wanted)
        self.key, self.value, self.wanted = key, value, wanted

    def text(self) -> str:
        return f"{self.key} = {shown(self.value)}: {self.wanted}{parse_number(self.value)}"

    def under(self, section: str) -> ParameterError:
        """A copy of this error whose key is in the named section of the config."""
        return ParameterError(f"{section}.{self.key}", self.value, self.wanted)


class TooWide(ConfigError):
    """Noise so wide, or votes so many, that an exact sum over them would take too long."""


class VotesError(DataError, ValueError):
    """Histograms that cannot be votes."""


def shown(value: object) -> str:
    """A value as it goes into one line."""
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def parse_number(value: object) -> str:
    """How to write what people mean by text that is nearly a number; nothing, of everything else.

    >>> parse_number("1,5"), parse_number("50 %"), parse_number("7"), parse_number("many")
    ('; write 1.5, with a point', '; write 0.5, without %', '; write 7, without quotes', '')
    >>> parse_number("4,000")
    '; write 4000, without commas'
    """
    if isinstance(value, str) and _THOUSANDS.fullmatch(value):
        return f"; write {value.replace(',', '')}, without commas"
    if not isinstance(value, str) or not (found := _NEARLY_A_NUMBER.fullmatch(value)):
        return ""
    plain = found["digits"].replace(",", ".")
    if found["percent"]:
        return f"; write {float(plain) / 100:g}, without %"
    return f"; write {plain}, " + ("with a point" if "," in value else "without quotes")


def number(
    value: object,
    key: str,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    below: float = math.inf,
    most: float = math.inf,
    what: str = "a number",
    hint: str = "",
) -> float:
    """A finite number within the bounds: above and below are excluded, least and most included."""
    found = _real(value)
    if found is None or not (math.isfinite(found) and above < found < below and least <= found <= most):
        bounds = [
            f"{word} {bound:,.0f}" if abs(bound) >= 1000 else f"{word} {bound:g}"
            for word, bound in (("above", above), ("at least", least), ("below", below), ("at most", most))
            if math.isfinite(bound)
        ]
        wanted = " ".join(["must be", what, " and ".join(bounds)]).strip()
        raise ParameterError(key, value, f"{wanted}; {hint}" if hint else wanted)
    return found


def whole(value: object, key: str, *, least: int, most: int = MAX_QUERIES) -> int:
    """A whole number: 10 and 10.0 are, 2.5 and True are not."""
    found = _real(value)
    if found is None or not math.isfinite(found) or found != math.floor(found) or not least <= found <= most:
        raise ParameterError(key, value, f"must be a whole number, at least {least:,} and at most {most:,}")
    return int(value) if isinstance(value, Integral) else int(found)


def epsilon(value: object, key: str = "epsilon") -> float:
    """ε of a budget or of a mechanism."""
    return number(value, key, above=0, most=MAX_EPSILON)


def delta(value: object, key: str = "delta") -> float:
    """δ that ε is stated at."""
    if (tiny := _real(value)) is not None and 0 < tiny < MIN_DELTA:
        raise ParameterError(key, value, f"must be at least {MIN_DELTA:g}")
    return number(value, key, above=0, below=1, hint="well below one over the number of records is usual, such as 1e-5")


def delta_or_zero(value: object, key: str = "delta") -> float:
    """δ of a guarantee that may be pure."""
    return number(value, key, least=0, below=1)


def claimed(epsilon_value: object, delta_value: object) -> tuple[float, float]:
    """(ε, δ) that somebody's mechanism claims: pure with δ = 0, no promise at all with ε = ∞."""
    found = _real(epsilon_value)
    if found is None or not found >= 0:  # not NaN either
        raise ParameterError("epsilon", epsilon_value, "must be a number, at least 0; infinity where there is no ε")
    return found, delta_or_zero(delta_value)


def noise(value: object, key: str = "scale") -> float:
    """Scale or standard deviation of noise, in votes."""
    return number(value, key, least=MIN_NOISE, most=MAX_NOISE, what="a noise scale in votes,")


def positive(value: object, key: str) -> float:
    """Any other number above 0: a noise multiplier, a sensitivity, a bound on noise that is not drawn."""
    return number(value, key, above=0)


def clip_norm(value: object, key: str = "clip_norm") -> float:
    """The norm that gradients are clipped to: single precision computes norms, so it must hold squares as short.

    Of a number too small to square nothing is left: a gradient far longer than the clipping norm would count whole.
    """
    return number(value, key, least=MIN_CLIP_NORM, most=1 / MIN_CLIP_NORM, hint="single precision must square it")


def threshold(value: object, key: str = "threshold") -> float:
    """A number of votes that a noisy count is compared with."""
    return number(value, key, least=-MAX_VOTES, most=MAX_VOTES, what="a number of votes,")


def order(value: object, key: str = "order") -> float:
    """A Rényi order."""
    return number(value, key, above=1, most=1e9, what="a Rényi order")


def orders(values: Any, key: str = "orders") -> NDArray[np.float64]:
    """Rényi orders, one or more."""
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ParameterError(key, values, "must be a list of numbers above 1") from None
    if found.ndim != 1 or found.size == 0 or not np.all(np.isfinite(found) & (found > 1.0)):
        raise ParameterError(key, values, "must be a list, not empty, of finite numbers above 1")
    return found


def probability(value: object, key: str) -> float:
    """A sampling rate, or a share: above 0, and 1 at most."""
    return number(value, key, above=0, most=1)


def format_rate(rate: float) -> Fraction:
    """The decimal that somebody wrote: 2·0.29·50 is 29, and not the 28.999… of binary floats."""
    return Fraction(repr(float(rate)))


def open_probability(value: object, key: str) -> float:
    """A probability that is neither 0 nor 1."""
    return number(value, key, above=0, below=1)


def queries(value: object, key: str = "queries", least: int = 0) -> int:
    """How many queries, or steps, or releases."""
    return whole(value, key, least=least, most=MAX_QUERIES)


def limits(max_queries: object, max_answers: object) -> tuple[int, int]:
    """The most queries asked, and of them answered."""
    return queries(max_queries, "max_queries"), queries(max_answers, "max_answers")


def teachers(value: object, key: str = "n_teachers") -> int:
    """How many teachers vote."""
    return whole(value, key, least=1, most=MAX_QUERIES)


def classes(value: object, key: str = "n_classes") -> int:
    """How many classes there are to choose from."""
    return whole(value, key, least=2, most=MAX_CLASSES)


def histograms(counts: Any, key: str = "counts") -> NDArray[np.int64]:
    """Vote histograms as int64[queries, classes]: whole counts, none negative. What is wrong is said without values."""
    given = np.asarray(counts)
    if given.dtype.kind not in "iuf":
        raise VotesError(f"{key}: holds {given.dtype}, not counts of votes")
    if given.ndim != 2 or given.shape[1] < 1:
        raise VotesError(f"{key}: has shape {given.shape}; needed is (queries, classes)")
    for wrong, words in (
        (lambda: ~np.isfinite(given), "NaN or infinity"),
        (lambda: given < 0, "a negative count"),
        (lambda: given != np.floor(given), "a count that is not whole"),
        (lambda: given > MAX_VOTES, f"a count of more than {MAX_VOTES:,} votes"),
    ):
        where = wrong()
        if where.any():
            raise VotesError(f"{key}: row {int(np.argmax(where.any(axis=1)))} holds {words}")
    return given.astype(np.int64)


def votes(counts: Any, key: str = "votes") -> NDArray[np.int64]:
    """Histograms of one ensemble: at least two classes and one query, every teacher voting once in each row."""
    found = histograms(counts, key)
    if found.shape[1] < 2:
        raise VotesError(f"{key}: has shape {found.shape}; needed is (queries, classes) with two classes or more")
    if len(found) == 0:
        raise VotesError(f"{key}: holds no queries")
    totals = found.sum(axis=1)
    if (totals != totals[0]).any():
        row = int(np.argmax(totals != totals[0]))
        raise VotesError(f"{key}: row {row} has another number of votes than row 0; every teacher votes once per row")
    if not 1 <= totals[0] <= MAX_VOTES:
        raise VotesError(f"{key}: every row must hold the votes of 1 to {MAX_VOTES:,} teachers")
    return found


def seed(value: object, key: str = "seed") -> int:
    """A seed that every library takes."""
    return whole(value, key, least=0, most=MAX_SEED)


def _real(value: object) -> float | None:
    """A number as a float; None for text, for True, and for anything else that is not a number."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf
