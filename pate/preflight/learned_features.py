"""Features that are learned: once, from public examples alone, before anything is trained, counted or charged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from pate.config import BaselineConfig, Config
from pate.config.components import Component, listed
from pate.errors import ConfigError, DataError, first_line
from pate.features import build_steps, learned_steps

if TYPE_CHECKING:
    from collections.abc import Sequence


def learns_features(config: Config) -> bool:
    """Whether a transform that the config names learns from public examples first, which may take minutes."""
    models = [*config.teachers, *(one for one in (config.nonprivate, config.neighbours) if one is not None)]
    steps = [step for one in models for step in build_steps([f.model_dump() for f in one.features], "features")]
    return any(callable(getattr(step, "learn", None)) for step in steps)


def with_learned_features(config: Config, X_public: NDArray) -> Config:
    """The config, in which every transform that learns from public examples has done so, or was found to have.

    What they learned is named in their parameters, so whoever makes them from this config, here or on a worker,
    has the same. Nothing else changes.
    """
    changed: dict[str, Any] = {
        "teachers": tuple(
            family.model_copy(update={"features": _learned(family.features, X_public, f"teachers.{number}.features")})
            for number, family in enumerate(config.teachers)
        )
    }
    if config.nonprivate is not None:
        features = _learned(config.nonprivate.features, X_public, "nonprivate.features")
        changed["nonprivate"] = config.nonprivate.model_copy(update={"features": features})
    if config.neighbours is not None:
        features = _learned(config.neighbours.features, X_public, "neighbours.features")
        changed["neighbours"] = config.neighbours.model_copy(update={"features": features})
    return config.model_copy(update=changed)


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
