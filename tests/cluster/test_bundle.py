"""Only what may leave a run travels, and only that is written."""

from __future__ import annotations

import hashlib
import io
import random
import tarfile
import tempfile
from pathlib import Path

import pytest

from pate.cluster.bundle import PIECE, copy_from_storage, pack, unpack
from pate.cluster.jobs import Request, lay_out, sends_token_unencrypted
from pate.errors import RunError


def a_run(folder: Path) -> Path:
    for name in ("private/key", "private/votes.npz", "ledger.db", "config.yaml", "student/student.json", "labels.npz"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "report.json").write_text("{}")
    return folder


def packed(run: Path) -> tuple[list[bytes], list[str]]:
    """The pieces of a bundle, and what they must hash to."""
    with tempfile.TemporaryDirectory() as folder:
        hashes = pack(run, Path(folder))
        return [(Path(folder) / str(number)).read_bytes() for number in range(len(hashes))], hashes


def members(pieces: list[bytes]) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
        return archive.getmembers()


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_nothing_private_travels(tmp_path: Path) -> None:
    pieces, hashes = packed(a_run(tmp_path / "run"))
    assert unpack(pieces.__getitem__, hashes, tmp_path / "here") == ["report.json", "labels.npz", "student"]
    assert files_in(tmp_path / "here") == {"report.json", "labels.npz", "student/student.json"}
    assert {member.name for member in members(pieces)} == files_in(tmp_path / "here")  # nothing else was sent either


def test_only_known_files_travel_and_nobodys_name(tmp_path: Path) -> None:
    """Not what somebody or a crash left beside them, nor what a link leads to, nor who has the files there."""
    run = a_run(tmp_path / "run")
    (run / "plots").mkdir()
    known = ("report.html", "privacy.txt", "plots/plane.svg", "plots/examples.npz", "student/model.skops")
    strange = (
        "student/records.csv",
        "student/student.json.partial",
        "plots/notes.txt",
        "plots/a/b.svg",
        "results.json",
    )
    for name in (*known, *strange, "report.json.bak"):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text(name)
    (run / "plots" / "link.svg").symlink_to(run / "private" / "key")
    pieces, hashes = packed(run)
    unpack(pieces.__getitem__, hashes, tmp_path / "here")
    sent = members(pieces)
    assert {member.name for member in sent} == {*known, "report.json", "labels.npz", "student/student.json"}
    assert {member.name for member in sent} == files_in(tmp_path / "here")
    assert {(m.uname, m.gname, m.uid, m.gid, m.mtime) for m in sent} == {("", "", 0, 0, 0)}


def test_of_a_study_its_table_leaves_and_none_of_its_runs(tmp_path: Path) -> None:
    study = tmp_path / "reproduce-digits"
    a_run(study / "gnmax-250-seed0")
    for name in ("results.json", "table.txt", "private/results.json", "notes.txt"):
        (study / name).parent.mkdir(exist_ok=True)
        (study / name).write_text(name)
    pieces, hashes = packed(study)
    assert unpack(pieces.__getitem__, hashes, tmp_path / "here") == ["results.json", "table.txt"]
    assert {member.name for member in members(pieces)} == files_in(tmp_path / "here") == {"results.json", "table.txt"}


def test_large_results_travel_in_pieces_and_arrive_whole_or_not_at_all(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    (run / "labels.npz").write_bytes(random.Random(0).randbytes(2 * PIECE + 5))
    pieces, hashes = packed(run)
    assert [len(piece) for piece in pieces[:-1]] == [PIECE] * 2
    unpack(pieces.__getitem__, hashes, tmp_path / "here")
    assert (tmp_path / "here" / "labels.npz").read_bytes() == (run / "labels.npz").read_bytes()
    damaged = [*pieces[:-1], pieces[-1][:-1] + b"?"]
    with pytest.raises(RunError, match="fetch it again"):
        unpack(damaged.__getitem__, hashes, tmp_path / "there")
    assert not list(tmp_path.glob("there*"))


def test_what_may_leave_is_read_from_storage(tmp_path: Path) -> None:
    a_run(tmp_path / "run")
    url = f"file://{tmp_path}/run"
    assert copy_from_storage(url, tmp_path / "here") == ["report.json", "labels.npz", "student"]
    assert files_in(tmp_path / "here") == {"report.json", "labels.npz", "student/student.json"}
    with pytest.raises(RunError, match="is not empty; choose another place"):
        copy_from_storage(url, tmp_path / "here")
    with pytest.raises(RunError, match="no finished run is seen there"):
        copy_from_storage(f"file://{tmp_path}/nowhere", tmp_path / "there")


def test_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no finished run"):
        pack(tmp_path, tmp_path)
    with pytest.raises(RunError, match="could not be read"):
        unpack(lambda _: b"", [], tmp_path / "here")


@pytest.mark.parametrize("name", ["../outside", "/etc/outside", "private/key", "student/../../outside"])
def test_a_bundle_writes_nothing_else(tmp_path: Path, name: str) -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for one in ("report.json", name):
            archive.addfile(tarfile.TarInfo(one), io.BytesIO())
    hashes = [hashlib.sha256(content.getvalue()).hexdigest()]
    assert unpack(lambda _: content.getvalue(), hashes, tmp_path / "x" / "here") == ["report.json"]
    assert files_in(tmp_path) == {"x/here/report.json"}


def test_only_config_and_code_are_sent(tmp_path: Path) -> None:
    project, sent = tmp_path / "project", tmp_path / "sent"
    a_run(project / "runs" / "one")
    for name in ("my.yaml", "teacher.py", "patients.csv", "data.npz"):
        (project / name).write_text(name)
    sent.mkdir()
    lay_out(sent, project / "my.yaml", pack=True)
    assert {path.name for path in sent.iterdir()} == {"my.yaml", "teacher.py", "pate"}
    assert (sent / "pate" / "cli" / "__init__.py").exists()


def test_the_jobs_command_line_is_quoted() -> None:
    options = {"set": ["teachers=[{name: x}]", "seed=1"], "data_dir": "/my data", "out": "~/runs/one", "resume": True}
    request = Request("run", "a b.yaml", "~/runs/one", options=options | {"force": False, "anchor": None})
    words = "'a b.yaml' --set 'teachers=[{name: x}]' --set seed=1 --data-dir '/my data' --out '~/runs/one' --resume"
    assert request.entrypoint == f"python -m pate.cli run {words} --log-json"


@pytest.mark.parametrize(
    ("address", "clear"),
    [("http://127.0.0.1:8265", False), ("http://head:8265", True), ("https://head", False), ("http://[::1]:1", False)],
)
def test_a_token_in_the_clear_is_noticed(address: str, clear: bool) -> None:
    assert sends_token_unencrypted(address) == clear
