"""What a notebook shows of released labels."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

import numpy as np
from numpy.typing import NDArray


def labels_table(classes: Iterable[object], labels: NDArray[np.int64]) -> str:
    """How many labels of each class were released, as HTML.

    >>> labels_table(["cat", "<dog>"], np.array([0, 1, 1, -1]))
    '<table><tr><th>class</th><th>labels</th></tr><tr><td>cat</td><td>1</td></tr><tr><td>&lt;dog&gt;</td><td>2</td></tr></table>'
    """
    names = list(classes)
    counts = np.bincount(labels[labels >= 0], minlength=len(names))
    rows = (f"<tr><td>{escape(str(name))}</td><td>{n}</td></tr>" for name, n in zip(names, counts, strict=True))
    return f"<table><tr><th>class</th><th>labels</th></tr>{''.join(rows)}</table>"
