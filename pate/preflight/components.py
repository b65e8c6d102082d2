"""Whether what the config names can be imported and constructed."""

from __future__ import annotations

from pathlib import Path

from pate.components.registry import make_importable
from pate.config import Config


def check_components(config: Config, config_dir: Path) -> None:
    """Import and construct everything the config names, before any data is read."""
    from pate.students.stage import new_student
    from pate.teachers import recipe_of
    from pate.voters import voters_of

    make_importable(config_dir)
    voters_of(config).build_components()
    if config.nonprivate is not None:
        recipe = recipe_of(config.nonprivate, "nonprivate")
        recipe.estimator(config.seed)
        recipe.build_features()
    new_student(config)
