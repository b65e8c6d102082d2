"""What a file from elsewhere may name: nothing of anybody else's is imported, not even to be refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pate.components.registry import import_dotted, importing_only, make_importable
from pate.errors import NotTrusted


@pytest.mark.parametrize("module", ["sklearn_own", "pate_own", "own"])
def test_what_is_called_like_ours_is_not_even_imported(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{module}.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w').close()\nclass Own: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    with importing_only([]), pytest.raises(NotTrusted):
        import_dotted(f"{module}.Own", "key")
    assert not (tmp_path / "mark").exists()
    assert module not in sys.modules


def test_tests_of_scikit_learn_are_nobodys_classifiers() -> None:
    name = "sklearn.tests.test_base.MyEstimator"
    with importing_only([]) as guard, pytest.raises(NotTrusted):
        import_dotted(name, "key")
    assert guard.refused == [name]


def test_the_folder_of_an_untrusted_config_is_not_looked_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    with importing_only([]):
        make_importable(tmp_path)
    assert str(tmp_path) not in sys.path
    make_importable(tmp_path)
    assert str(tmp_path) in sys.path
