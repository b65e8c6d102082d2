"""The non-private baseline, tried on public examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pate.components.attempts import SHOWN, as_config_error, attempt, dummy_labels, few_labels, shorten_training

if TYPE_CHECKING:
    from pate.runs.context import RunContext


def check(context: RunContext) -> None:
    """Raise ConfigError where the non-private baseline, which is for benchmarks alone, would fail later."""
    config, public = context.config, context.public
    if config.nonprivate is None:
        return
    if not public.benchmark:
        text = "nonprivate: left out, since its accuracy would tell of private records; it is for benchmarks"
        context.notes.public.append(text)
        return
    if public.X_test is None:
        return
    from pate.teachers import recipe_of
    from pate.teachers.part import PartClassifier

    recipe = recipe_of(config.nonprivate, "nonprivate")
    X = public.X_public[: few_labels(public.n_classes)]
    with as_config_error(), attempt(f"nonprivate.name = {config.nonprivate.name!r}", "trained"):
        features = recipe.build_features().transform(X)
        model = PartClassifier(shorten_training(recipe.estimator(config.seed)))
        model.fit(features, dummy_labels(len(X), public.n_classes)).predict(features[:SHOWN])
