"""Which part a record belongs to: a keyed hash of its own identity, never its position or its company.

Guarantee: adding, removing or changing one record under its id moves no other record, so it touches one part.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from pate.errors import DataError
from pate.mechanisms.stability import poisson_subsets


def identities(X: NDArray, y: NDArray, ids: Sequence[str] | None) -> list[bytes]:
    """A record's identity: its id where there is one (then privacy is per person), else its bytes.

    Ids are text in its canonical form: 1, 1.0 and b"1" would be three persons.
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


def assign_parts(record_identities: Sequence[bytes], key: bytes, n_parts: int) -> NDArray[np.int64]:
    """The part of each record. The bias of the remainder is below 2⁻⁹⁰ for any number of parts in use."""
    digests = (keyed_digest(key, b"part", identity) for identity in record_identities)
    return np.fromiter((int.from_bytes(d, "little") % n_parts for d in digests), dtype=np.int64)


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
    """MSamp's own partition: Poisson subsamples, a record in at most `kappa` of them by a rule of its own."""
    records = identities(X, y, ids)
    members: list[list[int]] = [[] for _ in range(n_parts)]
    for row in _order(X, y, key):
        for part in poisson_subsets(records[row], key, n_parts, rate, kappa):
            members[part].append(int(row))
    return [np.array(rows, dtype=np.int64) for rows in members]


def ranks(X: NDArray, y: NDArray, key: bytes) -> list[bytes]:
    """What records of a part are ordered by: a keyed hash of each one's content."""
    return [keyed_digest(key, b"order", record) for record in contents(X, y)]


def _order(X: NDArray, y: NDArray, key: bytes) -> NDArray[np.int64]:
    """Row numbers in an order that depends on each record's own content, not on its place."""
    rank = ranks(X, y, key)
    return np.array(sorted(range(len(rank)), key=rank.__getitem__), dtype=np.int64)
