"""Features that are learned: once, from public examples alone, before anything is trained, counted or charged."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from numpy.typing import NDArray

from pate.config import BaselineConfig, Config
from pate.config._components import Component, listed
from pate.errors import ConfigError, DataError, first_line
from pate.features import build_steps, learned_steps
from pate.voters import voters_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pate.runs.context import RunContext


def check(context: RunContext) -> None:
    """Learn the features that learn, and put the config that names what they learned into the context."""
    config = context.config
    named = [
        *voters_of(config).features().values(),
        *(() if config.nonprivate is None else (config.nonprivate.features,)),
    ]
    steps = [step for one in named for step in build_steps([f.model_dump() for f in one], "features")]
    is_long = any(callable(getattr(step, "learn", None)) for step in steps)
    with context.console.working("learning features from public examples") if is_long else nullcontext():
        context.config = with_learned_features(config, context.public.X_public)


def with_learned_features(config: Config, X_public: NDArray) -> Config:
    """The config, in which every transform that learns from public examples has done so, or was found to have.

    What they learned is named in their parameters, so whoever makes them from this config, here or on a worker,
    has the same. Nothing else changes.
    """
    voters = voters_of(config)
    config = voters.with_features({key: _learned(steps, X_public, key) for key, steps in voters.features().items()})
    if config.nonprivate is None:
        return config
    features = _learned(config.nonprivate.features, X_public, "nonprivate.features")
    return config.model_copy(update={"nonprivate": config.nonprivate.model_copy(update={"features": features})})


def with_learned_preparation(config: BaselineConfig, X_public: NDArray) -> BaselineConfig:
    """The config, in which every preprocessing step that learns has learned from public examples."""
    given = config.baseline.params.get("preprocessing")
    if not given:
        return config
    steps = tuple(Component.model_validate(step) for step in listed(given))
    preprocessing = [step.model_dump() for step in _learned(steps, X_public, "preprocessing")]
    params = {**config.baseline.params, "preprocessing": preprocessing}
    return config.model_copy(update={"baseline": config.baseline.model_copy(update={"params": params})})


def _learned(steps: Sequence[Component], X_public: NDArray, key: str) -> tuple[Component, ...]:
    try:
        return tuple(
            Component.model_validate(step)
            for step in learned_steps([step.model_dump() for step in steps], X_public, key)
        )
    except (ConfigError, DataError):
        raise
    except Exception as error:  # somebody else's class may fail in any way
        text = f"{key}: cannot learn from public examples: {type(error).__name__}: {first_line(error)}"
        raise ConfigError(text) from None
