"""Steps that noisy gradients take. Each works on what is released already, so none costs privacy."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pate.errors import ConfigError

OPTIMISERS = ("momentum", "adam")
_SECOND = 0.999  # how slowly Adam forgets squares
_LEAST = 1e-8


class Optimiser:
    """Momentum: speed = momentum·speed + gradient; weights fall by rate·speed."""

    kept = 1
    """Tensors per parameter."""

    def __init__(self, parameters: Sequence[torch.Tensor], momentum: float) -> None:
        self.parameters, self.momentum = parameters, momentum
        self.tensors = [torch.zeros_like(parameter) for parameter in parameters for _ in range(self.kept)]

    def resume(self, tensors: Sequence[torch.Tensor]) -> None:
        """Go on with what was kept."""
        self.tensors = [tensor.to(self.parameters[0].device) for tensor in tensors]

    def step(self, gradients: Sequence[torch.Tensor], rate: float, number: int) -> None:
        """Change the parameters, in place, by the noisy mean gradient of step `number` (from 1 on)."""
        with torch.no_grad():
            for place, (parameter, gradient) in enumerate(zip(self.parameters, gradients, strict=True)):
                own = self.tensors[self.kept * place : self.kept * (place + 1)]
                parameter.sub_(rate * self._direction(own, gradient, number))

    def _direction(self, own: Sequence[torch.Tensor], gradient: torch.Tensor, number: int) -> torch.Tensor:
        (speed,) = own
        return speed.mul_(self.momentum).add_(gradient)


class Adam(Optimiser):
    """DP-Adam (Kingma and Ba 2015, on noisy gradients): momentum over the root of the mean square, both corrected for
    their beginning at zero. The mean square is of gradient and noise together."""

    kept = 2

    def _direction(self, own: Sequence[torch.Tensor], gradient: torch.Tensor, number: int) -> torch.Tensor:
        mean, square = own
        mean.mul_(self.momentum).add_(gradient, alpha=1 - self.momentum)
        square.mul_(_SECOND).addcmul_(gradient, gradient, value=1 - _SECOND)
        first, second = 1 - self.momentum**number, 1 - _SECOND**number
        return (mean / first) / ((square / second).sqrt() + _LEAST)


def optimiser_for(name: str, parameters: Sequence[torch.Tensor], momentum: float) -> Optimiser:
    """By the name that a config gives it."""
    if name not in OPTIMISERS:
        raise ConfigError(f"optimiser = {name!r}: must be one of {', '.join(OPTIMISERS)}")
    return (Adam if name == "adam" else Optimiser)(parameters, momentum)
