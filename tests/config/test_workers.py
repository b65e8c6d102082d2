"""How many workers, and that where a run takes place is no part of what it is."""

from __future__ import annotations

import pytest

from pate.config import RaySettings, load_config
from pate.errors import ConfigError


def test_a_number_of_workers_is_the_most() -> None:
    assert RaySettings(workers=4) == RaySettings(workers={"min": 1, "max": 4})  # type: ignore[arg-type]
    assert load_config(None, ["ray.workers=3"]).ray.workers.max == 3
    assert load_config(None, ["ray.workers={min: 2, max: 250}"]).ray.workers.min == 2
    assert RaySettings().workers.max is None
    assert RaySettings().worker_timeout_seconds == 600


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ray.workers=0", "ray.workers = 0"),
        ("ray.workers={min: 3, max: 2}", "more than max"),
        ("ray.worker_timeout_seconds=0", "ray.worker_timeout_seconds"),
        ("ray.gpus_per_worker=most", "auto"),
    ],
)
def test_mistakes_are_told_by_key(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config(None, [text])


def test_resources_are_no_part_of_what_a_run_is_known_by() -> None:
    plain = load_config(None)
    given = load_config(None, ["teachers.0.resources={cpus: 2, labels: {zone: a}}", "ray.gpus_per_worker=0"])
    assert given.teachers[0].resources.cpus == 2
    assert given.digest() == plain.digest()
    assert "resources" not in plain.to_yaml()
    assert "zone: a" in given.to_yaml()
