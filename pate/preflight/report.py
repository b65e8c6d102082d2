"""The report: every page and plot, drawn from dummy figures and the real names, of classes above all."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pate.components.attempts import AttemptFailed, attempt, dummy_labels
from pate.errors import ConfigError

if TYPE_CHECKING:
    from pate.runs.context import RunContext

_SHOWN = 6  # examples of the page: one line of them


def check(context: RunContext) -> None:
    """Raise ConfigError where the pages of the run could not be drawn."""
    if not context.options.pages:
        return
    from pate.report.dummy import dummy_report
    from pate.report.figures import save_examples
    from pate.report.files import store_report, write_pages
    from pate.runs.files import RunFiles

    config, public = context.config, context.public
    labels = dummy_labels(min(_SHOWN, len(public.X_public)), public.n_classes, True)
    try:
        with tempfile.TemporaryDirectory(prefix="pate-") as folder, attempt("report", "drawn"):
            path = Path(folder)
            RunFiles(path).config_file.write_text(config.to_yaml(), encoding="utf-8")
            store_report(path, dummy_report(context.voters, public, context.epsilon))
            save_examples(RunFiles(path).examples_file, public, labels)
            write_pages(path, images=False)
    except AttemptFailed as error:
        raise ConfigError(f"{error}; are the names of the classes plain text?") from None
