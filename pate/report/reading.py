"""The stored report of a run: nothing is drawn, so nothing heavy is loaded."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from pate.errors import RunError
from pate.report.explanations import AnyReport
from pate.report.schema import BaselineReport, Report
from pate.runs.files import RunFiles


def read_report(path: Path) -> AnyReport:
    """The stored report of a run or of a baseline."""
    try:
        content = json.loads(RunFiles(path).report_file.read_text(encoding="utf-8"))
        kind = BaselineReport if content.get("kind") == "baseline" else Report
        return kind.model_validate(content)
    except FileNotFoundError:
        raise RunError(f"{path}: has no report.json; name the directory of a finished run") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "it"
        raise RunError(f"{path}/report.json: {key}: {first['msg']}; was it made by another version?") from None
    except (OSError, ValueError, AttributeError) as error:
        raise RunError(f"{path}/report.json: cannot be read ({error})") from None
