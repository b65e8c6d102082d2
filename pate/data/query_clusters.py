"""Which public examples to ask about first, from the public data alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_COMPONENTS = 50


def by_clusters(X: NDArray, asked: int, seed: int) -> NDArray[np.int64]:
    """Row numbers: first the example nearest to the centre of each of `asked` k-means clusters, then all others.

    Columns of a table count by their spread, so that no unit of measurement outweighs the others. No label and nothing
    private enters, so the list of queries is fixed before the first vote.
    """
    from sklearn.cluster import MiniBatchKMeans
    from sklearn.decomposition import PCA

    flat = X.reshape(len(X), -1)
    if X.ndim == 2:
        spread = flat.std(axis=0)
        flat = flat / np.where(spread > 0, spread, 1)
    if flat.shape[1] > _COMPONENTS < len(flat):
        flat = PCA(_COMPONENTS, random_state=seed).fit_transform(flat)
    distances = MiniBatchKMeans(min(asked, len(X)), n_init=3, random_state=seed).fit_transform(flat)
    nearest = np.unique(distances.argmin(0))
    return np.concatenate([nearest, np.setdiff1d(np.arange(len(X)), nearest)])
