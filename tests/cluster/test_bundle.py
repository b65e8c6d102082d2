"""Only what may leave a run travels, and only that is written."""

from __future__ import annotations

import base64
import io
import tarfile
from pathlib import Path

import pytest

from pate.cluster.bundle import pack, unpack
from pate.cluster.jobs import Request, lay_out, sends_token_in_the_clear
from pate.errors import RunError


def a_run(folder: Path) -> Path:
    for name in ("private/key", "private/votes.npz", "ledger.db", "config.yaml", "student/student.json", "labels.npz"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "report.json").write_text("{}")
    return folder


def test_nothing_private_travels(tmp_path: Path) -> None:
    text = pack(a_run(tmp_path / "run"))
    names = unpack(f"a warning of Ray's\n{text}\nmore words", tmp_path / "here")
    assert names == ["report.json", "labels.npz", "student"]
    found = {str(path.relative_to(tmp_path / "here")) for path in (tmp_path / "here").rglob("*") if path.is_file()}
    assert found == {"report.json", "labels.npz", "student/student.json"}
    assert packed(text) == found  # not only is nothing else taken out


def packed(text: str) -> set[str]:
    """The names in a bundle."""
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode("".join(text.splitlines()[1:-1])))) as archive:
        return set(archive.getnames())


def test_only_known_files_travel_and_nobodys_name(tmp_path: Path) -> None:
    """Not what somebody or a crash left beside them, nor what a link leads to, nor who has the files there."""
    run = a_run(tmp_path / "run")
    (run / "plots").mkdir()
    known = ("report.html", "privacy.txt", "plots/plane.svg", "plots/examples.npz", "student/model.skops")
    for name in (*known, "student/records.csv", "student/student.json.partial", "plots/notes.txt", "plots/a/b.svg"):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text(name)
    (run / "plots" / "link.svg").symlink_to(run / "private" / "key")
    text = pack(run)
    unpack(text, tmp_path / "here")
    found = {str(path.relative_to(tmp_path / "here")) for path in (tmp_path / "here").rglob("*") if path.is_file()}
    assert packed(text) == found == {*known, "report.json", "labels.npz", "student/student.json"}
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode("".join(text.splitlines()[1:-1])))) as archive:
        assert {(m.uname, m.gname, m.uid, m.gid, m.mtime) for m in archive} == {("", "", 0, 0, 0)}


def test_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no finished run"):
        pack(tmp_path)
    with pytest.raises(RunError, match="could not be read"):
        unpack("something else", tmp_path / "here")


@pytest.mark.parametrize("name", ["../outside", "/etc/outside", "private/key", "student/../../outside"])
def test_a_bundle_writes_nothing_else(tmp_path: Path, name: str) -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    begin, *_, end = pack(a_run(tmp_path / "run")).splitlines()
    text = "\n".join([begin, base64.b64encode(content.getvalue()).decode(), end])
    with pytest.raises(RunError, match="could not be read"):
        unpack(text, tmp_path / "x" / "here")
    assert [path for path in (tmp_path / "x").rglob("*") if path.is_file()] == []
    assert not (tmp_path / "outside").exists()


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
    request = Request(Path("configs/a b.yaml"), ["teachers=[{name: x}]"], "/my data", "~/runs/one", resume=True)
    words = "'a b.yaml' --set 'teachers=[{name: x}]' --data-dir '/my data' --out '~/runs/one' --resume"
    assert request.entrypoint == f"python -m pate.cli run {words}"
    anchored = Request(Path("one.yaml"), out="s3://runs/one", anchor="s3://other/anchors of runs")
    words = "one.yaml --out s3://runs/one --anchor 's3://other/anchors of runs'"
    assert anchored.entrypoint == f"python -m pate.cli run {words}"


@pytest.mark.parametrize(
    ("address", "clear"),
    [("http://127.0.0.1:8265", False), ("http://head:8265", True), ("https://head", False), ("http://[::1]:1", False)],
)
def test_a_token_in_the_clear_is_noticed(address: str, clear: bool) -> None:
    assert sends_token_in_the_clear(address) == clear
