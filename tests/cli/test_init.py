"""`pate init`: a config that runs, from files as people have them; what it guessed, and nothing private unsaid."""

from __future__ import annotations

import csv
import re
import shlex
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from support.command_line import Ended, in_process

from pate.config import load_config
from pate.data._column_inference import guess_dialect, read, seen
from pate.data._sources import load
from pate.data.private import is_per_person, records_of
from pate.errors import DataError
from pate.ledger import Charge, SharedLedger
from pate.planning._config_wizard import LOUD, start
from pate.runs._run_ledger import ledger_opener
from pate.runs.run import Run
from pate.teachers import recipes
from pate.voters import voters_of

N_PRIVATE, N_PUBLIC = 900, 240


def rows(n: int, seed: int, private: bool) -> list[dict[str, str]]:
    """Members of a club: will they stay? Some ages are missing, and only a private one has the card 'gold'."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(n):
        age, fee = int(rng.integers(18, 80)), round(float(rng.normal(30, 5)), 1)
        row = {"member": f"m{i // 2}"} if private else {}
        row |= {"joined": f"{rng.integers(10, 29)}.0{rng.integers(1, 9)}.20{rng.integers(10, 20)}"}
        row |= {"age": "" if rng.random() < 0.1 else str(age), "fee": str(fee).replace(".", ",")}
        row |= {"card": "gold" if private and i == 7 else str(rng.choice(["blue", "red"])), "note": f"note {i}"}
        row |= {"stays": "ja" if age + 2 * fee > 110 else "nein"} if private else {}
        made.append(row)
    return made


def save(path: Path, content: list[dict[str, str]], delimiter: str = ";", encoding: str = "cp1252") -> None:
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.DictWriter(file, list(content[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(content)


@pytest.fixture
def club(tmp_path: Path) -> Path:
    save(tmp_path / "members.csv", rows(N_PRIVATE, 1, private=True))
    save(tmp_path / "public.csv", [row | {"card": row["card"] + "é"} for row in rows(N_PUBLIC, 2, private=False)])
    return tmp_path


def init(folder: Path, *further: object, terminal: bool = False) -> Ended:
    files = folder / "members.csv", "--public", folder / "public.csv", "--out", folder / "club.yaml"
    return in_process("init", *files, *further, terminal=terminal)


def at_terminal(folder: Path, *further: object) -> Ended:
    """What the operator sees, who holds the private file."""
    return init(folder, *further, terminal=True)


def test_a_config_that_runs(club: Path) -> None:
    ended = init(club, "--label", "stays", "--classes", "ja,nein", "--records", 500)
    assert ended.returncode == 0, ended.stderr
    data = yaml.safe_load((club / "club.yaml").read_text())["data"]
    assert data["delimiter"] == ";"
    assert data["decimal"] == ","
    assert data["encoding"] == "cp1252"
    assert data["dates"] == {"joined": "%d.%m.%Y"}
    assert data["categories"] == {"card": ["blueé", "redé"]}
    assert data["id"] == "member"
    assert data["ignore"] == ["note"]
    assert data["public_record_count"] == 500
    assert LOUD not in ended.stdout + (club / "club.yaml").read_text()  # the user said all that is private
    for guess in ("separated by ';'", "'member' says whose record it is"):
        assert guess in ended.stdout
    config = load_config(club / "club.yaml")
    _, private = load(config.data, None, club, keep_missing=True)
    assert len(records_of(private)) == N_PRIVATE
    assert config.budget.epsilon is not None
    assert voters_of(config).publishable_epsilon(2) <= config.budget.epsilon <= 2


def test_nothing_private_is_told_unsaid(club: Path) -> None:
    """A category, a missing share or a number of private records is neither written nor printed."""
    ended = init(club, "--label", "stays", "--classes", "ja,nein", "--records", 500)
    told = ended.stdout + ended.stderr + (club / "club.yaml").read_text()
    assert "gold" not in told
    assert str(N_PRIVATE) not in told
    assert str(N_PRIVATE // 2) not in told
    for path, shares in ((club / "members.csv", "private"), (club / "public.csv", "public")):
        column = read(path, guess_dialect([path])).columns["age"]
        share = f"{100 * seen('age', column).missing:.1f} %"
        assert (share in told) == (shares == "public")


def test_what_comes_from_private_data_is_said_loudly(club: Path) -> None:
    ended = init(club, "--label", "stays")
    text = (club / "club.yaml").read_text()
    assert yaml.safe_load(text)["data"]["public_record_count"] == 400  # 450, rounded to one digit
    assert yaml.safe_load(text)["data"]["classes"] == ["ja", "nein"]
    for said in (ended.stdout, text, at_terminal(club, "--label", "stays", "--force").stdout):
        assert f"{LOUD}: classes" in said
        assert f"{LOUD}: public_record_count" in said
    guessed = init(club, "--force")
    assert "'stays' is what is to be predicted" in guessed.stdout


def test_private_files_have_no_say_in_how_files_are_read(tmp_path: Path) -> None:
    """One byte of a record would change what all others say; the operator may say it."""
    save(tmp_path / "members.csv", rows(N_PRIVATE, 1, private=True), encoding="utf-8")
    save(tmp_path / "public.csv", [row | {"card": row["card"] + "é"} for row in rows(N_PUBLIC, 2, False)], ";", "utf-8")
    known = "--label", "stays", "--classes", "ja,nein", "--records", 500
    assert init(tmp_path, *known).returncode == 0
    (tmp_path / "club.yaml").unlink()
    content = (tmp_path / "members.csv").read_bytes()
    (tmp_path / "members.csv").write_bytes(content.replace(b"note 3", b"note \xe9", 1))
    ended = at_terminal(tmp_path, *known)
    assert ended.returncode == 2
    assert "members.csv: not UTF-8 text; say its encoding with --encoding, such as cp1252" in ended.stderr
    assert not (tmp_path / "club.yaml").exists()
    save(tmp_path / "public.csv", rows(N_PUBLIC, 2, private=False))
    ended = init(tmp_path, *known, "--encoding", "cp1252")
    assert ended.returncode == 0, ended.stderr
    assert yaml.safe_load((tmp_path / "club.yaml").read_text())["data"]["encoding"] == "cp1252"
    ended = init(tmp_path, *known, "--force", "--encoding", "german")
    assert (ended.returncode, "public.csv: not in german" in ended.stderr) == (2, True)


def test_cells_with_line_breaks_hide_no_delimiter(tmp_path: Path) -> None:
    for name, content in (("members", rows(N_PRIVATE, 1, True)), ("public", rows(N_PUBLIC, 2, False))):
        save(tmp_path / f"{name}.csv", [row | {"note": f'{row["note"]},\n"so"\r\n'} for row in content])
    ended = init(tmp_path, "--label", "stays", "--classes", "ja,nein")
    assert ended.returncode == 0, ended.stderr
    config = load_config(tmp_path / "club.yaml")
    assert config.data.delimiter == ";"  # type: ignore[union-attr]
    _, private = load(config.data, None, tmp_path, keep_missing=True)
    assert len(records_of(private)) == N_PRIVATE


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_any_usual_delimiter_is_guessed(tmp_path: Path, delimiter: str) -> None:
    save(tmp_path / "members.csv", rows(N_PRIVATE, 1, private=True), delimiter)
    save(tmp_path / "public.csv", rows(N_PUBLIC, 2, private=False), delimiter)
    ended = init(tmp_path, "--label", "stays", "--classes", "ja,nein")
    assert ended.returncode == 0, ended.stderr
    config = load_config(tmp_path / "club.yaml")
    assert config.data.delimiter == delimiter  # type: ignore[union-attr]
    assert load(config.data, None, tmp_path, keep_missing=True)[0].X_public.shape[0] == N_PUBLIC


@pytest.mark.parametrize("other", ["members.csv", "test.csv"])
def test_files_that_are_separated_otherwise_are_named(club: Path, other: str) -> None:
    save(club / "test.csv", [{k: v for k, v in row.items() if k != "member"} for row in rows(40, 3, private=True)])
    save(club / other, rows(N_PRIVATE, 1, private=True), "\t")
    ended = init(club, "--test", club / "test.csv")
    assert ended.returncode == 2
    assert f"{other}: separated by '\\t', the public file by ';'; save all files alike" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_classes_come_from_a_public_test_file_where_there_is_one(club: Path) -> None:
    save(club / "test.csv", [{k: v for k, v in row.items() if k != "member"} for row in rows(40, 3, private=True)])
    ended = init(club, "--test", club / "test.csv")
    assert "classes ja, nein are those of the test file" in ended.stdout
    config = load_config(club / "club.yaml")
    data, _ = load(config.data, None, club, keep_missing=True)
    assert data.y_test is not None
    assert data.features is not None
    assert "age missing" in data.features


def test_parquet(club: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for name, private in (("members", True), ("public", False)):
        content = rows(N_PRIVATE if private else N_PUBLIC, 1, private)
        columns = {key: [row[key] for row in content] for key in content[0]}
        columns["age"] = [float(age) if age else None for age in columns["age"]]  # type: ignore[misc]
        columns["fee"] = [float(fee.replace(",", ".")) for fee in columns["fee"]]  # type: ignore[misc]
        if private:
            columns["member"] = [int(who[1:]) for who in columns["member"]]  # type: ignore[misc]
        parquet.write_table(pyarrow.table(columns), club / f"{name}.parquet")
    out = club / "club.yaml"
    ended = in_process("init", club / "members.parquet", "--public", club / "public.parquet", "--out", out)
    assert ended.returncode == 0, ended.stderr
    data = yaml.safe_load(out.read_text())["data"]
    assert data["source"] == "parquet"
    assert data["id_type"] == "integer"
    assert data["dates"] == {"joined": "%d.%m.%Y"}
    assert data["ignore"] == ["note"]


def test_teachers_for_a_table_so_wide_that_nothing_is_near(tmp_path: Path) -> None:
    wide = [{"who": str(i)} | {f"x{j}": str(i * j % 7) for j in range(101)} | {"y": "ab"[i % 2]} for i in range(40)]
    save(tmp_path / "members.csv", wide, ",")
    save(tmp_path / "public.csv", [{key: row[key] for key in row if key[0] == "x"} for row in wide], ",")
    options = ["--label", "y", "--id", "who", "--classes", "a,b", "--records", 20000, "--target-epsilon", 4]
    assert init(tmp_path, *options).returncode == 0
    config = load_config(tmp_path / "club.yaml")
    assert config.voters == "teachers"
    assert config.n_teachers > 20
    assert config.budget.max_queries <= 40
    for recipe in recipes(config.teachers):
        recipe.estimator(0)


@pytest.mark.parametrize(
    ("further", "words"),
    [
        (["--label", "staying"], "--label staying: "),
        (["--label", "stays", "--id", "membr"], "did you mean 'member'?"),
        (["--label", "member", "--id", "member"], "names the same column as"),
        (["--label", "note"], "too many or too rare"),
        (["--label", "stays", "--target-epsilon", 0.0001], "--target-epsilon 0.0001: out of reach"),
        (["--label", "stays", "--target-epsilon", -1], "--target-epsilon -1"),
        (["--label", "stays", "--delta", 0.5], "delta = 0.5"),
        (["--label", "stays", "--test", "gone.csv"], "gone.csv: no such file"),
        (["--label", "stays", "--test", "members.csv"], "members.csv: is the private file"),
        (["--label", "stays", "--classes", "ja"], "--classes ja: at least two"),
        (["--label", "stays", "--classes", "ja,no"], "not among data.classes"),
    ],
)
def test_mistakes_are_one_line(club: Path, further: list[object], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(club)
    ended = at_terminal(club, *further)
    assert ended.returncode == 2
    assert words in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_config_is_not_written_over(club: Path) -> None:
    (club / "club.yaml").write_text("mine")
    assert "club.yaml: is there already; add --force" in init(club, "--label", "stays").stderr
    assert (club / "club.yaml").read_text() == "mine"


def test_private_cells_that_are_no_numbers_or_dates_are_told_of_before_a_config_is_written(club: Path) -> None:
    """With `voters: neighbours` such records would cast no vote, and a run would not stop because of them."""
    private = club / "members.csv"
    text = private.read_bytes().decode("cp1252")
    header, first, *others = text.splitlines()
    place = header.split(";").index("joined")
    cells = first.split(";")
    cells[place] = "2021-03-04"
    private.write_bytes("\n".join([header, ";".join(cells), *others, ""]).encode("cp1252"))
    ended = at_terminal(club, "--label", "stays", "--classes", "ja,nein")
    assert ended.returncode == 2
    note, error = ended.stderr.splitlines()
    assert "note (private)" in note
    assert "column 'joined' holds '2021-03-04' (1 times)" in note
    assert "column 'joined', row 0" in error
    assert "2021-03-04" not in error
    assert not (club / "club.yaml").exists()


ONLY_THERE = "what is wrong depends on private records, and is said at a terminal only"


@pytest.mark.parametrize(
    ("change", "further"),
    [
        (lambda row: row | {"stays": "vielleicht"}, ["--classes", "ja,nein"]),
        (lambda row: row | {"stays": "vielleicht"}, []),  # one label is rare, so that it is no class
        (lambda row: row | {"joined": "2021-03-04"}, ["--classes", "ja,nein"]),
        (lambda row: row | {"age": "old"}, ["--classes", "ja,nein", "--records", 500]),
        (lambda row: row | {"note": 'an "open quote'}, ["--classes", "ja,nein"]),
        (lambda row: row | {"note": "\u0160\u81ea"}, ["--classes", "ja,nein"]),  # in another encoding
    ],
    ids=["another label", "rare label", "date", "number", "quote", "letters"],
)
def test_into_a_pipe_nothing_is_said_of_what_a_private_record_holds(club: Path, change: Any, further: list) -> None:
    """One record less usual: nothing that is printed tells which, where or how."""
    content = rows(N_PRIVATE, 1, private=True)
    changed = change(content[5])
    save(club / "members.csv", [*content[:5], changed, *content[6:]], encoding="utf-8")
    save(club / "public.csv", rows(N_PUBLIC, 2, private=False))
    with (club / "members.csv").open("a", encoding="utf-8") as file:
        file.write("m1;\n" if "open" in changed["note"] else "")  # a csv writer doubles quotes
    ended = init(club, "--label", "stays", *further)
    said = ended.stdout + ended.stderr
    if ended.returncode:
        assert ONLY_THERE in ended.stderr
        assert ended.stderr.count("\n") == 1
    for word in ("vielleicht", "2021-03-04", "old", "open quote", "rare", "row", "cp1252", "utf", "joined'", "age'"):
        assert word not in ended.stderr
    assert at_terminal(club, "--label", "stays", *further, "--force").stderr != ended.stderr or not ended.returncode
    assert "500 " not in said


def test_no_traceback_of_the_library_shows_it_either(club: Path) -> None:
    content = rows(N_PRIVATE, 1, private=True)
    save(club / "members.csv", [content[0] | {"joined": "2021-03-04"}, *content[1:]])
    with pytest.raises(DataError) as caught:
        start(club / "members.csv", club / "public.csv", label="stays", classes=["ja", "nein"])
    shown = "".join(traceback.format_exception(caught.value))
    assert ONLY_THERE in shown
    assert "row 0" not in shown


def test_a_public_file_that_is_wrong_is_told_of_in_a_pipe(club: Path) -> None:
    test = [{k: v for k, v in row.items() if k != "member"} for row in rows(40, 3, private=True)]
    save(club / "test.csv", [test[0] | {"age": "old"}, *test[1:]])
    ended = init(club, "--test", club / "test.csv")
    assert ended.returncode == 2
    assert "test.csv: column 'age', row 0" in ended.stderr
    assert ONLY_THERE not in ended.stderr


def test_into_a_pipe_all_private_files_look_alike(club: Path) -> None:
    """With other classes, another number of records and other persons the same is printed, to the letter."""
    printed = []
    for n, yes in ((N_PRIVATE, "ja"), (300, "doch")):
        content = [row | {"stays": yes if row["stays"] == "ja" else "nein"} for row in rows(n, 1, private=True)]
        save(club / "members.csv", content)
        ended = init(club, "--label", "stays", "--force")
        assert ended.returncode == 0, ended.stderr
        printed.append(ended.stdout + ended.stderr)
        shown = at_terminal(club, "--label", "stays", "--force").stdout
        assert f"one of {', '.join(sorted([yes, 'nein']))}" in shown
        assert f"rounded to {(400, 200)[n == 300]:,}" in shown
    assert printed[0] == printed[1]
    assert f"{LOUD}: classes, in {club / 'club.yaml'}" in printed[0]


def hospital(folder: Path, marker: str, private_marker: str | None = None) -> None:
    """Visits with lab values, of which the public file marks the missing ones, and a date, by a word."""
    rng = np.random.default_rng(0)
    for name, n in (("members", 400), ("public", 120)):
        word = private_marker if private_marker and name == "members" else marker
        content = []
        for i in range(n):
            row = {"Personen-Nr": f"p{i // 2}", "Fall-Nr": str(i)} if name == "members" else {}
            sodium = word if rng.random() < 0.3 else f"{rng.normal(140, 4):.1f}".replace(".", ",")
            seen_on = marker if i % 9 == 0 else f"{i % 28 + 1:02}.03.2022"
            row |= {"Natrium": sodium, "Aufnahme": seen_on, "Rh": str(rng.choice(["+", "-", marker]))}
            row |= {"Stufe": "<5" if i % 4 == 0 else str(rng.integers(5, 90)), "Notiz": f"Übelkeit; seit {i} Tagen"}
            row |= {"wieder da": "ja" if rng.random() < 0.5 else "nein"} if name == "members" else {}
            content.append(row)
        save(folder / f"{name}.csv", content, encoding="utf-8")


@pytest.mark.parametrize("marker", ["k.A.", "unbekannt", "--"])
def test_markers_of_missing_values_are_found_in_the_public_file(tmp_path: Path, marker: str) -> None:
    hospital(tmp_path, marker)
    ended = init(tmp_path, "--label", "wieder da", "--classes", "ja,nein", "--records", 200)
    assert ended.returncode == 0, ended.stderr
    data = yaml.safe_load((tmp_path / "club.yaml").read_text())["data"]
    assert data["missing_values"] == {"markers": [marker], "treatment": "indicator"}
    assert data["dates"] == {"Aufnahme": "%d.%m.%Y"}
    assert data["categories"] == {"Rh": ["+", "-"]}  # a marker is no category
    assert f"{marker!r} stands for a missing value, in every column" in ended.stdout
    assert "'Stufe'" in ended.stdout  # '<5' says something, so the column is left out aloud
    assert "'<5'" in ended.stdout
    loaded, private = load(load_config(tmp_path / "club.yaml").data, None, tmp_path, keep_missing=True)
    records = records_of(private)
    assert np.isfinite(records.X).all()
    assert not records.unlisted
    assert loaded.features is not None
    assert {"Natrium missing", "Aufnahme missing"} <= set(loaded.features)


def test_what_marks_a_missing_value_in_private_files_alone_is_told_to_the_operator_alone(tmp_path: Path) -> None:
    hospital(tmp_path, "k.A.", private_marker="fehlt")
    options = ["--label", "wieder da", "--classes", "ja,nein", "--records", 200]
    ended = init(tmp_path, *options)
    assert ONLY_THERE in ended.stderr
    assert "fehlt" not in ended.stdout + ended.stderr
    shown = at_terminal(tmp_path, *options)
    assert "column 'Natrium' holds 'fehlt'" in shown.stderr
    assert "--marker" in shown.stderr
    ended = init(tmp_path, *options, "--marker", "fehlt")
    assert ended.returncode == 0, ended.stderr
    missing = yaml.safe_load((tmp_path / "club.yaml").read_text())["data"]["missing_values"]
    assert missing["markers"] == ["fehlt", "k.A."]


def test_a_column_called_like_a_persons_number_is_the_id(tmp_path: Path) -> None:
    hospital(tmp_path, "k.A.")
    ended = init(tmp_path, "--label", "wieder da", "--classes", "ja,nein", "--records", 200)
    data = yaml.safe_load((tmp_path / "club.yaml").read_text())["data"]
    assert data["id"] == "Personen-Nr"
    assert "Fall-Nr" in data["ignore"]
    assert "protected:  each Personen-Nr, with all its records" in ended.stdout


def test_without_one_every_column_that_only_private_records_have_is_offered_with_what_to_write(tmp_path: Path) -> None:
    """What `init` says to do is done: by its option, and by hand."""
    hospital(tmp_path, "k.A.")
    text = (tmp_path / "members.csv").read_text(encoding="utf-8").replace("Personen-Nr", "Akte")
    (tmp_path / "members.csv").write_text(text, encoding="utf-8")
    options = ["--label", "wieder da", "--classes", "ja,nein", "--records", 200]
    ended = init(tmp_path, *options)
    out = tmp_path / "club.yaml"
    assert "PER ROW, not per person" in ended.stdout
    for name in ("Akte", "Fall-Nr"):
        assert f"add --id {name} --force, or write `id: {name}` in {out} where `# id: {name}` is" in ended.stdout
    assert "200 different values" not in ended.stdout + ended.stderr
    assert (
        "column 'Akte': 200 different values in 400 private rows" in at_terminal(tmp_path, *options, "--force").stderr
    )
    written = out.read_text(encoding="utf-8")
    assert "id" not in yaml.safe_load(written)["data"]
    by_hand = written.replace("  # id: Akte ", "  id: Akte   ")
    by_hand = "\n".join(line for line in by_hand.splitlines() if not line.strip().startswith("- Akte"))
    out.write_text(by_hand, encoding="utf-8")
    assert is_per_person(load(load_config(out).data, None, tmp_path, keep_missing=True)[1])
    assert init(tmp_path, *options, "--id", "Akte", "--force").returncode == 0
    assert yaml.safe_load(out.read_text(encoding="utf-8"))["data"]["id"] == "Akte"


def test_text_that_is_not_used_is_named(tmp_path: Path) -> None:
    hospital(tmp_path, "k.A.")
    ended = init(tmp_path, "--label", "wieder da", "--classes", "ja,nein", "--records", 200)
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("note: not used")]
    assert "'Notiz'" in line
    assert "'Rh'" not in line
    assert "text of its own" in next(line for line in ended.stdout.splitlines() if line.strip().startswith("Notiz "))
    _, private = load(load_config(tmp_path / "club.yaml").data, None, tmp_path, keep_missing=True)
    (note,) = [note for note in records_of(private).unused if "not used" in note]
    assert "'Notiz'" in note
    assert "data.ignore" in note


@pytest.mark.parametrize(("records", "target"), [(500, 0.5), (500, 8), (200_000, 2)])
def test_a_shared_ledger_is_suggested_that_has_room_for_two_runs(records: int, target: float, club: Path) -> None:
    """The lines are taken as they stand: the command is run, and the id that it prints goes where the dots are."""
    ended = init(club, "--label", "stays", "--classes", "ja,nein", "--records", records, "--target-epsilon", target)
    assert ended.returncode == 0, ended.stderr
    text = (club / "club.yaml").read_text()
    (command,) = re.findall(r"^  #   pate (ledger create .*)$", text, flags=re.MULTILINE)
    made = in_process(*shlex.split(command))
    assert made.returncode == 0, made.stderr
    (id,) = re.findall(r"id: (ledger-\w+)", made.stdout)
    taken = text.replace("  # ledger: {", "  ledger: {").replace("ledger-…", id)
    (club / "club.yaml").write_text(taken)
    config = load_config(club / "club.yaml")
    joint = SharedLedger.at(club / "club-ledger", id)
    assert joint.budget().delta == config.budget.delta
    assert joint.budget().epsilon <= 2.5 * target + 0.1, "two runs cost about two times as much, or less"
    ledgers = []
    for number in range(3):
        with Run.create(club / f"run{number}", config) as run:
            ledger = ledger_opener(voters_of(config), run, club)()
            ledgers.append(ledger.room() >= ledger.limits.max_answers)
            if ledgers[-1]:
                with ledger.batch(ledger.limits.max_answers):
                    queries = [f"{number}-{i}".encode() for i in range(ledger.limits.max_answers)]
                    ledger.charge_and_store(queries, [0] * len(queries), Charge(len(queries), len(queries)))
            ledger.close()
    assert ledgers == [True, True, False]
