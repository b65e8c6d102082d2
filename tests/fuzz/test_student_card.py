"""Folders that came from elsewhere: whatever files of a student or a baseline say, nothing of it is imported or called.

Every key of every card, at each depth, is replaced by each of `CODE` and of `ODD`; those of `ODD`, and where loading
takes long all of them, take turns, unless PATE_FUZZ is set. An audit hook notices whatever would start a process,
unpickle, connect or import; a canary module notices being imported.
"""

from __future__ import annotations

import copy
import json
import os
import resource
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fuzzing import hang_guard

from pate.baselines import build_baseline
from pate.cli._predict import predict
from pate.errors import NotTrusted, PateError
from pate.runs.model_store import load_model, save_model
from pate.students import build_student

CANARY = "pate_fuzz_canary"
POPEN = {"name": "subprocess.Popen", "params": {"args": ["true"]}}
CODE: list[Any] = [
    "subprocess.Popen", f"{CANARY}.Canary", POPEN, [["step", POPEN]],
    {"steps": [["a", POPEN]], "architecture": "os.system"},
]  # fmt: skip
ODD: list[Any] = [
    "os.system", "sklearn.datasets._base.urlretrieve", "pate.cli._student.forget", {"class": "os.system"}, [POPEN],
    "", "cnn", "x." * 5_000, "a.\x1b[2J\n", None, True, -1, 0, 3, 10**9, 10**30, 0.5, 1e308, float("nan"),
    [], [10**9], {},
]  # fmt: skip
DELETED = object()
_SLOW = ("mixmatch", "sgd", "sgd cnn")
_BYTES = 2**30
_DANGEROUS = (
    "subprocess.",
    "os.system",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.spawn",
    "pickle.",
    "socket.connect",
)

_seen: list[str] | None = None


def _notice(event: str, arguments: tuple[Any, ...]) -> None:
    if _seen is None:
        return
    name = str(arguments[0]) if arguments else ""
    if event.startswith(_DANGEROUS) or (event == "import" and name.split(".")[0] in (CANARY, "antigravity")):
        _seen.append(f"{event} {name}")


sys.addaudithook(_notice)  # cannot be taken away again; it does nothing while `_seen` is None


@pytest.fixture(autouse=True)
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module that can be imported and never is; and no test takes much memory."""
    (tmp_path / "importable").mkdir()
    (tmp_path / "importable" / f"{CANARY}.py").write_text(
        "class Canary:\n    def __init__(self, *a, **k): print('!')\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "importable")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert CANARY not in sys.modules
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < _BYTES


def examples() -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).random((24, 8, 8)).astype(np.float32)
    return X, np.arange(24) % 3


STUDENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "mixmatch": ("mixmatch", {"steps": 1, "batch_size": 4, "channels": 2, "hidden": 4}),
    "gan": ("gan", {"steps": 1, "batch_size": 4, "channels": 2, "hidden": 4}),
    "mlp": ("supervised", {"estimator": "network", "params": {"architecture": "mlp", "hidden": 4, "steps": 1}}),
    "svc": (
        "supervised",
        {"estimator": "sklearn.svm.SVC", "params": {"C": 1}, "preprocessing": ["upright", {"name": "hog"}]},
    ),
    "pipeline": (
        "supervised",
        {
            "estimator": "sklearn.pipeline.Pipeline",
            "params": {"steps": [["a", {"name": "sklearn.svm.SVC", "params": {"probability": False}}]]},
        },
    ),
}
BASELINES: dict[str, tuple[str, dict[str, Any]]] = {
    "erm": ("dp_erm", {"fourier_features": 3}),
    "tuned": ("dp_erm_tuned", {"candidates": [{"regularisation": 0.1}]}),
    "sgd": ("dp_sgd", {"model": "mlp", "model_params": {"hidden": 4}, "preprocessing": ["upright", {"name": "hog"}]}),
    "sgd cnn": ("dp_sgd", {"model": "deep_cnn", "model_params": {"channels": 2}}),
    "sgd pca": ("dp_sgd", {"model": "linear", "features": "pca", "components": 4}),
}
CARD = {"classes": ["a", "b", "c"], "shape": [8, 8], "input": "images", "features": None, "epsilon": 1.0, "delta": 1e-5}


def student_folder(name: str, folder: Path) -> Path:
    kind, params = STUDENTS[name]
    save_model(build_student(kind, params, 0).fit(*examples()), folder, CARD | {"mechanism": {"name": "gnmax"}})
    return folder


def baseline_folder(name: str, folder: Path) -> Path:
    kind, params = BASELINES[name]
    X, y = examples()
    given = {"epsilon": 50.0, "delta": 1e-3, "n_records": 24, "random_state": 0, "classes": range(3)}
    more = {"lot_size": 12, "epochs": 0.5, "sigma": 1.0} if kind == "dp_sgd" else {}
    model = build_baseline(kind, params | more, given | ({"epsilon": None} if more else {}))
    extra = {"X_public": X} if kind == "dp_sgd" else {}
    model.fit(X if kind == "dp_sgd" else X.reshape(24, -1), y, **extra)
    save_model(model, folder, {"classes": ["a", "b", "c"], "baseline": kind, "params": params | more})
    return folder


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every key at each depth, and the first and last of every list."""
    keys: list[Any] = list(content) if isinstance(content, dict) else []
    if isinstance(content, list) and content:
        keys = sorted({0, len(content) - 1})
    for key in keys:
        yield (*path, key)
        yield from places(content[key], (*path, key))


def changed(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    content = inner = copy.deepcopy(content)
    for key in path[:-1]:
        inner = inner[key]
    if value is DELETED:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return content


def one_line_or_nothing(action: Callable[[], Any], what: object) -> PateError | None:
    """The error if there was one: of ours, one line. Nothing dangerous happens meanwhile."""
    global _seen
    refusal, _seen = None, []
    try:
        with hang_guard():
            action()
    except PateError as error:
        refusal = error
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    finally:
        seen, _seen = _seen, None
    assert seen == [], what
    assert refusal is None or ("\n" not in str(refusal) and len(str(refusal)) < 1000), what
    return refusal


def attack(name: str, file: Path, action: Callable[[], Any]) -> float:
    """Put what is hostile everywhere into a card; the share of those cards that was refused."""
    action()  # as it is it works, and whatever libraries do on first use is done
    whole = json.loads(file.read_text())
    refused, tried, turns = 0, 0, 1 if os.environ.get("PATE_FUZZ") else 12 if name in _SLOW else 6
    for number, path in enumerate(places(whole)):
        code = CODE if turns < 12 else [CODE[number % len(CODE)], CODE[(number + 2) % len(CODE)]]
        for value in [*code, *[DELETED, *ODD][number % turns :: turns]]:
            file.write_text(json.dumps(changed(whole, path, value)))
            what = f"{'.'.join(map(str, path))} = {str(value)[:60]}"
            refused += one_line_or_nothing(action, what) is not None
            tried += 1
    return refused / tried


@pytest.mark.parametrize("name", sorted(set(STUDENTS) - {"gan"}))  # which loads as mixmatch does, but slowly
def test_no_key_of_a_students_card_runs_anything(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = student_folder(name, tmp_path / "student")
    np.save(tmp_path / "X.npy", examples()[0][:2])
    assert attack(name, folder / "student.json", lambda: predict(folder, tmp_path / "X.npy", as_json=True)) > 0.2
    for line in capsys.readouterr().out.splitlines():
        json.loads(line, parse_constant=lambda value: pytest.fail(f"{value} is not JSON"))


@pytest.mark.parametrize("name", BASELINES)
def test_no_key_of_a_baselines_card_runs_anything(name: str, tmp_path: Path) -> None:
    folder = baseline_folder(name, tmp_path / "model")
    assert attack(name, folder / "model.json", lambda: load_model(folder)) > 0.2


@pytest.mark.parametrize("name", ["svc", "pipeline"])
def test_no_type_in_a_skops_file_runs_anything(name: str, tmp_path: Path) -> None:
    folder = student_folder(name, tmp_path / "student")
    with zipfile.ZipFile(folder / "model.skops") as archive:
        entries = {entry: archive.read(entry) for entry in archive.namelist()}
    schema = json.loads(entries["schema.json"])
    foreign = [("subprocess", "Popen"), ("os", "system"), (CANARY, "Canary"), ("builtins", "eval")]
    for path in places(schema):
        if path[-1] != "__module__":
            continue
        for module, cls in foreign:
            crafted = changed(changed(schema, path, module), (*path[:-1], "__class__"), cls)
            with zipfile.ZipFile(folder / "model.skops", "w") as archive:
                for entry, content in (entries | {"schema.json": json.dumps(crafted).encode()}).items():
                    archive.writestr(entry, content)
            one_line_or_nothing(lambda: load_model(folder), f"{path}: {module}.{cls}")


@pytest.mark.parametrize("name", ["gan", "mixmatch", "mlp", "svc"])
def test_damaged_bytes_are_one_line(name: str, tmp_path: Path) -> None:
    folder = student_folder(name, tmp_path / "student")
    rng = np.random.default_rng(0)
    for file in sorted(folder.iterdir()):
        whole = file.read_bytes()
        for _ in range(25):
            broken = bytearray(whole[: rng.integers(1, len(whole) + 1)])
            for place in rng.integers(min(len(broken), 400), size=3):
                broken[place] = rng.integers(256)
            file.write_bytes(broken)
            one_line_or_nothing(lambda: load_model(folder), file.name)
        file.write_bytes(whole)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"student": ' * 100_000, "[]", "1", "", b"\xff\xfe\x00\xd8"])
def test_a_card_that_is_none_is_one_line(text: str | bytes, tmp_path: Path) -> None:
    (tmp_path / "student.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(PateError, match="no readable model"):
        load_model(tmp_path)


def test_a_pipe_in_place_of_a_file_does_not_hang(tmp_path: Path) -> None:
    folder = student_folder("mixmatch", tmp_path / "student")
    for file in sorted(folder.iterdir()):
        shutil.move(file, tmp_path / "kept")
        os.mkfifo(file)
        with pytest.raises(PateError, match="regular file"):
            load_model(folder)
        file.unlink()
        shutil.move(tmp_path / "kept", file)


def test_the_reproducer(tmp_path: Path) -> None:
    """`architecture: subprocess.Popen` with a command in `module_params` used to run that command."""
    folder = student_folder("mlp", tmp_path / "student")
    load_model(folder)
    card = json.loads((folder / "student.json").read_text())
    mark = tmp_path / "owned"
    card["learned"]["network"]["shape"] = ["touch", str(mark)]
    card["params"]["params"] = {"architecture": "subprocess.Popen"}
    (folder / "student.json").write_text(json.dumps(card))
    with pytest.raises(PateError):
        load_model(folder)
    card["learned"]["network"]["shape"] = [8, 8]
    (folder / "student.json").write_text(json.dumps(card))
    with pytest.raises(NotTrusted, match=r"would import subprocess\.Popen; .* trust=\['subprocess\.Popen'\]"):
        load_model(folder)
    assert not mark.exists()
