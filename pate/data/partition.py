"""Which part a record belongs to: a keyed hash of its own identity, never its position or other records.

Guarantee: adding, removing or changing one record under its id moves no other record, so it touches one part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pate.accounting import _parameters as parameters
from pate.errors import DataError
from pate.mechanisms.base import Split

if TYPE_CHECKING:
    from pate.data.private import Records

_UNIFORM_BITS = 64  # bits of a hash that decide whether a record is in a subset


def identities(X: NDArray, y: NDArray, ids: Sequence[str] | None) -> list[bytes]:
    """The identity of each record: its id where there is one (then privacy is per person), else its bytes.

    Ids are text in canonical form: 1, 1.0 and b"1" would be three persons.
    """
    if ids is None:
        return contents(X, y)
    if len(ids) != len(X) or not all(isinstance(i, str) for i in ids):
        raise DataError("private data: every record has one id, and ids are text")
    return [b"id:" + i.encode() for i in ids]


def contents(X: NDArray, y: NDArray) -> list[bytes]:
    """The bytes of each record, features and label."""
    X, y = np.ascontiguousarray(X), np.ascontiguousarray(y)
    return [b"record:" + row.tobytes() + label.tobytes() for row, label in zip(X, y, strict=True)]


def keyed_digest(key: bytes, purpose: bytes, value: bytes) -> bytes:
    """128 bits that nobody without the key can compute; `purpose` keeps uses of one key apart.

    >>> keyed_digest(b"k", b"part", b"x") == keyed_digest(b"k", b"query", b"x")
    False
    """
    return blake2b(value, key=key, person=purpose, digest_size=16).digest()


def forgetting_marks(record_identities: Sequence[bytes], key: bytes) -> list[str]:
    """What a record that was forgotten is remembered by."""
    return [keyed_digest(key, b"forget", identity).hex() for identity in record_identities]


def assign_parts(record_identities: Sequence[bytes], key: bytes, n_parts: int) -> NDArray[np.int64]:
    """The part of each record. The bias of the remainder is below 2⁻⁹⁰ for any number of parts in use."""
    digests = (keyed_digest(key, b"part", identity) for identity in record_identities)
    return np.fromiter((int.from_bytes(d, "little") % n_parts for d in digests), dtype=np.int64)


def parts_of(X: NDArray, y: NDArray, ids: Sequence[str] | None, key: bytes, split: Split) -> list[NDArray[np.int64]]:
    """Row numbers of each teacher's records; `split` is how the mechanism assigns records to parts."""
    if split.rate is None:
        return split_into_parts(X, y, ids, key, split.n_parts)
    return subsample_parts(X, y, ids, key, split.n_parts, split.rate, split.max_parts)


def split_into_parts(
    X: NDArray, y: NDArray, ids: Sequence[str] | None, key: bytes, n_parts: int
) -> list[NDArray[np.int64]]:
    """Row numbers of each part, in an order that depends on the part's own records only."""
    part = assign_parts(identities(X, y, ids), key, n_parts)
    order = _order(X, y, key)
    by_part = order[np.argsort(part[order], kind="stable")]
    return np.split(by_part, np.searchsorted(part[by_part], np.arange(1, n_parts)))


def subsample_parts(
    X: NDArray, y: NDArray, ids: Sequence[str] | None, key: bytes, n_parts: int, rate: float, kappa: int
) -> list[NDArray[np.int64]]:
    """Poisson subsamples, a record in at most `kappa` of them by a rule that looks at that record alone."""
    records = identities(X, y, ids)
    members: list[list[int]] = [[] for _ in range(n_parts)]
    for row in _order(X, y, key):
        for part in poisson_subsets(records[row], key, n_parts, rate, kappa):
            members[part].append(int(row))
    return [np.array(rows, dtype=np.int64) for rows in members]


def one_record_per_person(records: Records, n_classes: int, key: bytes) -> NDArray[np.bool_]:
    """Which records count where each person has one: of those that can be learned from, that of the least keyed hash.

    Which one it is depends on that person's records alone, never on their places or on anybody else's. Where there are
    no ids, every record counts.
    """
    if records.ids is None:
        return np.ones(len(records), dtype=np.bool_)
    usable, rank = records.usable(n_classes), ranks(records.X, records.y, key)
    chosen: dict[str, int] = {}
    for row in np.flatnonzero(usable).tolist():
        best = chosen.setdefault(records.ids[row], row)
        if rank[row] < rank[best]:
            chosen[records.ids[row]] = row
    return np.isin(np.arange(len(records)), list(chosen.values()))


def poisson_subsets(record_id: bytes, key: bytes, n_subsets: int, rate: float, kappa: int) -> tuple[int, ...]:
    """The subsets a record is in: each with probability `rate`, independently, but never more than `kappa`.

    A keyed BLAKE2b of the record's own identity gives a number in [0, 2⁶⁴) for each subset; the record is in
    a subset if its number is below rate·2⁶⁴. Of those the `kappa` with the smallest numbers are kept.
    Nothing depends on any other record, so adding, removing or changing one record changes at most `kappa`
    subsets.

    >>> poisson_subsets(b"patient 3", b"secret", n_subsets=100, rate=0.05, kappa=4)
    (28, 93)
    """
    if not 1 <= len(key) <= blake2b.MAX_KEY_SIZE:
        raise ValueError(f"the key must have 1 to {blake2b.MAX_KEY_SIZE} bytes, not {len(key)}")
    parameters.probability(rate, "rate")
    parameters.teachers(n_subsets, "n_subsets")
    parameters.queries(kappa, "kappa", least=1)
    limit = math.floor(parameters.format_rate(rate) * 2**_UNIFORM_BITS)
    numbers = _uniform_numbers(record_id, key, n_subsets)
    inside = sorted((number, subset) for subset, number in enumerate(numbers) if number < limit)
    return tuple(sorted(subset for _, subset in inside[:kappa]))


def _uniform_numbers(record_id: bytes, key: bytes, n: int) -> list[int]:
    """n numbers of 64 bits, eight to a hash; the counter has a fixed width, so no two inputs coincide."""
    stream = b"".join(
        blake2b(block.to_bytes(8, "little") + record_id, key=key, person=b"pate-subsets").digest()
        for block in range(-(-n // 8))
    )
    return [int.from_bytes(stream[8 * i : 8 * i + 8], "little") for i in range(n)]


def ranks(X: NDArray, y: NDArray, key: bytes) -> list[bytes]:
    """The keys that the records of a part are sorted by: a keyed hash of each record's content."""
    return [keyed_digest(key, b"order", record) for record in contents(X, y)]


def _order(X: NDArray, y: NDArray, key: bytes) -> NDArray[np.int64]:
    """Row numbers in an order that depends on each record's own content, not on its place."""
    rank = ranks(X, y, key)
    return np.array(sorted(range(len(rank)), key=rank.__getitem__), dtype=np.int64)
