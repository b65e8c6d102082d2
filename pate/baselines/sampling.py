"""What DP-SGD draws: lots, noise, and whatever a network draws in a forward pass on private records.

Dropout, RReLU, stochastic depth, fractional pooling, and modules that call `torch.rand` draw from torch's global
generator, one example after the other. Whoever seeds that knows every draw, and a record that comes or goes shifts
those of all others: the sum of gradients then moves by far more than one clipping norm. So here they draw by keys of
their own, one for each record in each step.

Guarantee: what a record's gradient depends on is the record, the weights, and draws keyed by the step's key and that
record's own content. So with all keys fixed another record changes no draw but its own; and the step's key comes from
the operating system, so no seed that anybody sets changes or predicts anything.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map, tree_map_only

from pate.errors import ConfigError
from pate.networks._process import seeded_globally
from pate.noise import Entropy, bernoulli, gaussians

WHERE = ("auto", "os", "device")
_SEED_BYTES = 8


def draws_for(where: str, device: torch.device, entropy: Entropy) -> LotSampler:
    """`os`, `device`, or `auto`: on the device where that is a GPU."""
    if where not in WHERE:
        raise ConfigError(f"draws = {where!r}: must be one of {', '.join(WHERE)}")
    if where == "device" or (where == "auto" and device.type == "cuda"):
        return OnDevice(device, entropy)
    return FromSystem(device, entropy)


class FromSystem:
    """Lots and noise with every bit from `entropy`, moved to the device."""

    def __init__(self, device: torch.device, entropy: Entropy) -> None:
        self._device, self._entropy = device, entropy

    def lot(self, n: int, rate: float) -> torch.Tensor:
        return torch.from_numpy(np.flatnonzero(bernoulli(n, rate, self._entropy)))

    def gaussians(self, n: int) -> torch.Tensor:
        return torch.from_numpy(gaussians(n, self._entropy)).to(self._device)


class OnDevice:
    """Lots and noise drawn on the device, each call by a key of its own from `entropy`."""

    def __init__(self, device: torch.device, entropy: Entropy) -> None:
        self._device, self._entropy = device, entropy
        self._generator = torch.Generator(device=device)

    def lot(self, n: int, rate: float) -> torch.Tensor:
        uniform = torch.rand(n, generator=self._keyed(), device=self._device, dtype=torch.float64)
        return (uniform < rate).nonzero().squeeze(1)

    def gaussians(self, n: int) -> torch.Tensor:
        four = torch.randn(4, n, generator=self._keyed(), device=self._device, dtype=torch.float64)
        return 0.5 * four.sum(0)

    def _keyed(self) -> torch.Generator:
        return self._generator.manual_seed(int.from_bytes(self._entropy(_SEED_BYTES), "little") >> 1)


LotSampler = FromSystem | OnDevice
"""One step's randomness: `lot(n, rate)` is the rows of a lot, each of n with probability `rate` by
itself; `gaussians(n)` is n standard normal draws in float64, each half the sum of four."""

KEY_BYTES = 32


class NotByRecord(RuntimeError):
    """Something was drawn for a whole batch, so that it cannot be keyed by record: it has to go one by one."""


@dataclass(frozen=True)
class ForwardDraws:
    """The draws of one step, of examples known by `marks`.

    In a batch they are made row by row, each as if it were alone. Without `by_row` no draw is allowed in a batch: for
    networks of which nobody has tried whether the first axis of what they draw is that of the examples.
    """

    key: bytes
    marks: Sequence[bytes]
    by_row: bool = True

    def only(self, row: int) -> ForwardDraws:
        """The draws of one of the examples, by itself."""
        return self.some(slice(row, row + 1))

    def some(self, rows: slice) -> ForwardDraws:
        """The draws of some of the examples."""
        return replace(self, marks=self.marks[rows])

    @contextmanager
    def active(self) -> Iterator[None]:
        """Every draw of torch, numpy and Python within comes from these keys; their global states are put back."""
        seed = self._seed(self.marks[0] if len(self.marks) == 1 else b"", b"global")
        with seeded_globally(seed), _Keyed(self):
            before = _global_states()
            yield
            if len(self.marks) != 1 and _global_states() != before:
                raise NotByRecord("numpy or Python drew for a batch, not for each of its examples")

    def seed(self, row: int, number: int) -> int:
        """The seed of the draw with that number, for one of the examples."""
        return self._seed(self.marks[row], number.to_bytes(8, "little"))

    def _seed(self, mark: bytes, purpose: bytes) -> int:
        digest = blake2b(mark + purpose, key=self.key, digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1


def drawing(draws: ForwardDraws | None) -> AbstractContextManager[None]:
    """`draws` where they are given; else whatever is drawn comes from the global generators."""
    return nullcontext() if draws is None else draws.active()


def _global_states() -> tuple[Any, ...]:
    """The states of numpy's and Python's global generators, to be compared."""
    name, keys, *rest = np.random.get_state()  # noqa: NPY002 - others draw from it
    return (random.getstate(), name, np.asarray(keys).tobytes(), *rest)


def record_marks(X: NDArray, y: NDArray[np.int64]) -> list[bytes]:
    """What records are known by: a digest of each one's own content, whatever others there are."""
    X, y = np.ascontiguousarray(X), np.ascontiguousarray(y)
    return [blake2b(row.tobytes() + label.tobytes(), digest_size=16).digest() for row, label in zip(X, y, strict=True)]


class _Keyed(TorchDispatchMode):
    """Gives every operation that draws the generator's state that belongs to the record and the draw's number."""

    def __init__(self, draws: ForwardDraws) -> None:
        super().__init__()
        self._draws, self._rows, self._drawn = draws, len(draws.marks), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given: tuple[Any, dict[str, Any]] = args, kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*given[0], **given[1])
        number, generator = self._drawn, _generator_of(given)
        self._drawn += 1
        given = tree_map_only(torch.Generator, lambda _: generator, given)
        if self._rows == 1:
            generator.manual_seed(self._draws.seed(0, number))
            return func(*given[0], **given[1])
        return self._by_row(func, given, generator, number)

    def _by_row(self, func: Any, given: tuple[Any, dict[str, Any]], generator: torch.Generator, number: int) -> Any:
        if not (self._draws.by_row and self._has_rows(func, given)):
            raise NotByRecord("a draw is for a batch, not for each of its examples")
        found = []
        for row in range(self._rows):
            generator.manual_seed(self._draws.seed(row, number))
            args, kwargs = self._of_row(func, given, row)
            found.append(func(*args, **kwargs))
        if func._schema.returns[0].alias_info is not None:  # drawn in place, through views of the rows
            return given[1].get("out", given[0][0])
        if isinstance(found[0], torch.Tensor):
            return torch.cat(found)
        return tuple(torch.cat(parts) for parts in zip(*found, strict=True))

    def _has_rows(self, func: Any, given: tuple[Any, dict[str, Any]]) -> bool:
        tensors: list[torch.Tensor] = []
        tree_map_only(torch.Tensor, tensors.append, given)
        sizes = [value for name, value in _named(func, given) if name == "size"]
        return bool(tensors or sizes) and all(
            len(size) > 0 and size[0] == self._rows for size in (*(t.shape for t in tensors), *sizes)
        )

    def _of_row(self, func: Any, given: tuple[Any, dict[str, Any]], row: int) -> tuple[list[Any], dict[str, Any]]:
        args, kwargs = tree_map(lambda x: x[row : row + 1] if isinstance(x, torch.Tensor) else x, given)
        names = [argument.name for argument in func._schema.arguments]
        args = [[1, *value[1:]] if name == "size" else value for name, value in zip(names, args, strict=False)]
        return args, {name: [1, *value[1:]] if name == "size" else value for name, value in kwargs.items()}


def _named(func: Any, given: tuple[Any, dict[str, Any]]) -> list[tuple[str, Any]]:
    names = [argument.name for argument in func._schema.arguments]
    return [*zip(names, given[0], strict=False), *given[1].items()]


def _generator_of(given: tuple[Any, dict[str, Any]]) -> torch.Generator:
    """The global generator of the device that is drawn on; its state is set before every draw."""
    devices: list[torch.device] = []
    tree_map_only(torch.Tensor, lambda tensor: devices.append(tensor.device), given)
    named = given[1].get("device")
    device = devices[0] if devices else torch.device(named if named is not None else "cpu")
    if device.type != "cuda":
        return torch.default_generator
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]
