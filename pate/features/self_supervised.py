"""Features learned from public images alone, without labels: a dictionary of small patches.

Coates and Ng, "The Importance of Encoding Versus Training with Sparse Coding and Vector Quantization", 2011, and
"Learning Feature Representations with K-Means", 2012: patches are brought to one contrast and whitened, spherical
k-means finds atoms, and an image is described by how strongly its patches resemble each atom, or its negative, in each
square of a coarse grid. That takes seconds where a network takes hours.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.errors import ConfigError, DataError, first_line
from pate.storage._files import make_folder, read_whole, write_atomically

_ROUNDS = 12  # of k-means
_SOFT_CONTRAST = 0.01  # of the mean variance of public patches, added to that of every patch
_SOFT_WHITENING = 0.1
_AT_ONCE = 8192
_NAME = re.compile(r"[0-9a-f]{32}")


@dataclass(eq=False)
class SelfSupervised:
    """Features learned from public images alone, without labels: a dictionary of small patches.

    `learn(X_public)` finds the dictionary. `transform` gives, for each of `grid` × `grid` squares of an image, the
    mean over the square's patches of how far each atom's response is above `threshold`, then the same for its
    negative: 2·atoms·grid² columns. What was learned is stored in `folder` under a name made of the public images and
    the parameters, and found there again; workers on other machines need the folder too.

    Parameters
    ----------
    atoms : int, default 400
        Number of atoms.
    patch : int, default 6
        Side of a patch in pixels.
    patches : int, default 100000
        Number of public patches to learn from.
    grid : int, default 2
        Squares per side of an image.
    threshold : float, default 0.5
        Response above which an atom counts.
    root : bool, default True
        Whether square roots are taken, which is better where distances count.
    random_state : int, default 0
        Seed of everything that is drawn while training.
    folder : str, optional
        Where dictionaries are stored; ~/.cache/pate/features by default.
    learned : str, optional
        Name of the dictionary; a run adds it.
    """

    exact_by_row = True  # every image goes through the same operations by itself, in a matrix of its own

    atoms: int = 400
    patch: int = 6
    patches: int = 100_000
    grid: int = 2
    threshold: float = 0.5
    root: bool = True
    random_state: int = 0
    folder: str | None = None
    learned: str | None = None

    def __post_init__(self) -> None:
        for name, most in (("atoms", 10_000), ("patches", 10**7), ("grid", 64)):
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"{name} = {getattr(self, name)}: must be 1 to {most:,}")
        if not (2 <= self.patch <= 64 and 0 <= self.threshold <= 100):
            raise ValueError(f"patch = {self.patch}: must be 2 to 64; threshold = {self.threshold}: 0 to 100")
        if self.learned is not None and not _NAME.fullmatch(self.learned):
            raise ValueError(f"learned = {self.learned!r}: 32 hexadecimal digits, which a run adds; leave it out")
        self._state: Any = None

    def learn(self, X_public: NDArray) -> dict[str, Any]:
        """Learn from public images, unless that was done before; the parameters with which `transform` works."""
        images = self._images(X_public)
        if len(images) == 0:
            raise DataError("self_supervised: there are no public images to learn from")
        own = [blake2b(image.tobytes(), digest_size=16).digest() for image in images]
        order = sorted(range(len(own)), key=own.__getitem__)
        settings = (1, images.shape[1:], self.atoms, self.patch, self.patches, self.random_state)
        content = blake2b(repr(settings).encode(), digest_size=16, person=b"self_supervised")
        for row in order:
            content.update(own[row])
        self.learned = content.hexdigest()
        if not self._path().is_file():
            from safetensors.numpy import save_file

            state = self._dictionary(images[order])
            try:
                make_folder(self._path().parent)
                write_atomically(self._path(), lambda path: save_file(state, path), mode=0o644)
            except OSError as error:
                raise ConfigError(f"features: folder = {str(self._path().parent)!r}: {error.strerror}") from None
        return {"learned": self.learned}

    def transform(self, X: NDArray) -> NDArray[np.float32]:
        import torch
        from torch.nn.functional import adaptive_avg_pool2d, unfold

        images = self._images(X)
        filters, offsets, softness = self._loaded(images.shape[3])
        rows, columns = (side - self.patch + 1 for side in images.shape[1:3])
        if min(rows, columns) < self.grid:
            raise DataError(
                f"self_supervised: images of {images.shape[1:3]} pixels are too small for grid = {self.grid}"
            )
        result = np.empty((len(images), 2 * len(offsets) * self.grid**2), dtype=np.float32)
        with torch.inference_mode():
            for row, image in enumerate(images):
                planes = torch.from_numpy(image.transpose(2, 0, 1).copy())
                patches = _one_contrast(unfold(planes[None], self.patch)[0].T.contiguous(), softness)
                responses = (patches @ filters - offsets).T.reshape(1, -1, rows, columns)
                above = [(sign * responses - self.threshold).clamp_(min=0) for sign in (1, -1)]
                means = adaptive_avg_pool2d(torch.cat(above, 1), self.grid).reshape(-1)
                result[row] = (means.sqrt() if self.root else means).numpy()
        return result

    def _images(self, X: NDArray) -> NDArray[np.float32]:
        images = np.asarray(X, dtype=np.float32)
        if images.ndim not in (3, 4) or min(images.shape[1:3]) < self.patch:
            raise DataError(
                f"self_supervised needs images of at least {self.patch} pixels, not examples of shape "
                f"{images.shape[1:]}"
            )
        return np.ascontiguousarray(images if images.ndim == 4 else images[..., None])

    def _dictionary(self, images: NDArray[np.float32]) -> dict[str, NDArray]:
        """Whitening and atoms as one matrix: a patch's responses are patch @ filters − offsets."""
        import torch

        from pate.networks._process import one_thread

        rng = np.random.default_rng(self.random_state)
        rows, columns = (side - self.patch + 1 for side in images.shape[1:3])
        places = (rng.integers(most, size=self.patches) for most in (len(images), rows, columns))
        pieces = [
            images[i, y : y + self.patch, x : x + self.patch].transpose(2, 0, 1).reshape(-1)
            for i, y, x in zip(*places, strict=True)
        ]
        with one_thread(), torch.inference_mode():
            patches = torch.from_numpy(np.stack(pieces))
            softness = max(_SOFT_CONTRAST * float(patches.var(1).mean()), 1e-12)
            patches = _one_contrast(patches, softness)
            mean = patches.mean(0)
            patches -= mean
            values, vectors = torch.linalg.eigh((patches.T @ patches / len(patches)).double())
            whitening = (vectors * (values.clamp(min=0) + _SOFT_WHITENING) ** -0.5 @ vectors.T).float()
            atoms = _spherical_k_means(patches @ whitening, self.atoms, rng)
            filters = whitening @ atoms.T
            return {
                "filters": filters.contiguous().numpy(),
                "offsets": (mean @ filters).numpy(),
                "softness": np.array([softness], dtype=np.float32),
            }

    def _path(self) -> Path:
        cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pate" / "features"
        return (Path(self.folder) if self.folder else cache) / f"self_supervised-{self.learned}.safetensors"

    def _loaded(self, n_planes: int) -> Any:
        if self.learned is None:
            raise ConfigError("features: self_supervised has learned nothing yet: call learn(X_public) first")
        if self._state is None:
            from safetensors.torch import load

            try:
                state = load(read_whole(self._path()))
                self._state = state["filters"], state["offsets"], float(state["softness"])
            except Exception as error:  # whatever is there
                raise ConfigError(
                    f"features: {self._path()}: nothing readable was learned there ({first_line(error)}); workers need "
                    "the folder too: name one that they share as `folder`"
                ) from None
        if len(self._state[0]) != n_planes * self.patch**2:
            raise DataError(f"self_supervised: learned from images of other planes than these, which have {n_planes}")
        return self._state


def _one_contrast(patches: Any, softness: float) -> Any:
    patches = patches - patches.mean(1, keepdim=True)
    return patches / (patches.square().mean(1, keepdim=True) + softness).sqrt()


def _spherical_k_means(patches: Any, n_atoms: int, rng: np.random.Generator) -> Any:
    """Directions of length 1; every patch belongs to the one that it, or its negative, is nearest to."""
    import torch

    atoms = torch.from_numpy(rng.standard_normal((n_atoms, patches.shape[1])).astype(np.float32))
    atoms /= atoms.norm(dim=1, keepdim=True)
    for _ in range(_ROUNDS):
        total = atoms.clone()
        for some in patches.split(_AT_ONCE):
            responses = some @ atoms.T
            nearest = responses.abs().argmax(1)
            total.index_add_(0, nearest, some * responses.gather(1, nearest[:, None]))
        atoms = total / total.norm(dim=1, keepdim=True).clamp(min=1e-12)
    return atoms
