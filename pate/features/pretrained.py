"""A frozen torchvision network, whose last layer but one gives the features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.errors import ConfigError, DataError

_BLOCK = 128
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, as torchvision's networks expect


class Pretrained:
    """`network` is a torchvision model, `weights` a safetensors file of its state, trained on public data.

    Images are resized to `size` pixels, grey ones repeated to three planes. What comes out is what the model's
    classifier (`fc` or the last layer of `classifier`) would get.
    """

    def __init__(self, weights: str, network: str = "resnet18", size: int = 64) -> None:
        if not 1 <= size <= 4096:
            raise ValueError(f"size = {size}: must be 1 to 4096 pixels")
        if not Path(weights).is_file():
            raise ConfigError(f"features: weights = {weights!r}: no such file; give a safetensors file of {network}")
        self.weights = weights
        self.network = network
        self.size = size
        self._model: Any = None

    def transform(self, X: NDArray) -> NDArray[np.float32]:
        import torch
        from torch.nn.functional import interpolate

        X = np.asarray(X, dtype=np.float32)
        if X.ndim not in (3, 4):
            raise DataError(f"pretrained needs images, not examples of shape {X.shape[1:]}")
        mean, deviation = (torch.tensor(v).view(1, 3, 1, 1) for v in (_MEAN, _DEVIATION))
        blocks = []
        with torch.no_grad():
            for start in range(0, max(len(X), 1), _BLOCK):
                block = torch.from_numpy(np.array(X[start : start + _BLOCK]))
                planes = block.unsqueeze(1).expand(-1, 3, -1, -1) if block.ndim == 3 else block.permute(0, 3, 1, 2)
                large = interpolate(planes, size=(self.size, self.size), mode="bilinear", antialias=True)
                blocks.append(self._loaded()((large - mean) / deviation).numpy())
        return np.concatenate(blocks)

    def _loaded(self) -> Any:
        if self._model is None:
            import torchvision
            from safetensors.torch import load_file
            from torch import nn

            try:
                model = torchvision.models.get_model(self.network, weights=None)
                model.load_state_dict(load_file(self.weights))
            except Exception as error:
                raise ConfigError(f"features: {self.weights}: does not fit {self.network} ({error})") from None
            if hasattr(model, "fc"):
                model.fc = nn.Identity()
            else:
                model.classifier[-1] = nn.Identity()
            self._model = model.eval()
        return self._model
