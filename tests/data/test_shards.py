"""Private records in shards: who reads them changes nothing, and every mistake names its shard."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pate.boundary import sum_counts
from pate.config import Config, RaySettings, parse_config
from pate.data import _shards as shards
from pate.data._records import Format
from pate.data._shards import Block, ShardReader, Summary
from pate.data._sources import load, read_by_workers
from pate.data.partition import split_into_parts, subsample_parts
from pate.data.private import Records, Shards, is_per_person, records_of
from pate.data.public import PublicData
from pate.errors import ConfigError, DataError
from pate.followup import drop_forgotten, forget
from pate.mechanisms.base import Split
from pate.runs.run import Run
from pate.teachers import Recipe
from pate.voters._readers import Readers
from pate.voters.teachers._checkpoints import InMemory
from pate.voters.teachers._pool import Pool
from pate.voters.teachers._worker import RemotePart, Teaching, Worker

KEY = b"s" * 32
N_PARTS = 7


def table(n: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "who": np.array([f"p{i}" for i in rng.integers(0, 60, n)]),
        "age": rng.normal(40, 10, n).round(2),
        "sex": rng.choice(["f", "m"], n),
        "sick": rng.choice(["no", "yes"], n),
    }


def write(folder: Path, source: str, n_shards: int = 4) -> dict:
    """Shards, a public and a test file; returns the data section of a config."""
    folder.mkdir(exist_ok=True)
    files = {f"shard-{i}": table(30 + i, i) for i in range(n_shards)}
    files["public"] = {key: table(20, 90)[key] for key in ("age", "sex")}
    files["test"] = {key: table(10, 91)[key] for key in ("age", "sex", "sick")}
    for name, columns in files.items():
        save(folder / f"{name}.{source}", columns, source)
    settings = {"source": source, "private": f"shard-*.{source}", "public": f"public.{source}"}
    settings |= {"test": f"test.{source}", "classes": ["no", "yes"]}
    if source == "npz":
        return settings | {"ids": True}
    return settings | {"label": "sick", "id": "who", "categories": {"sex": ["f", "m"]}}


def save(path: Path, columns: dict[str, np.ndarray], source: str) -> None:
    if source == "csv":
        lines = zip(*columns.values(), strict=True)
        path.write_text("\n".join([",".join(columns), *(",".join(map(str, line)) for line in lines)]) + "\n")
    elif source == "parquet":
        pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table(columns), path)
    else:
        X = np.stack([columns["age"], columns["sex"] == "f", columns["sex"] == "m"], axis=1)
        names = {"y": "sick", "id": "who"}
        arrays = {key: columns[name] for key, name in names.items() if name in columns}
        np.savez(path, X=X, **arrays)


def config(data: dict, **changes: object) -> Config:
    return parse_config(
        {
            "n_teachers": N_PARTS,
            "data": data,
            "teachers": [{"name": "sklearn.naive_bayes.GaussianNB"}],
            "mechanism": {"name": "gnmax", "sigma": 5},
            "student": {"name": "supervised", "params": {"estimator": "sklearn.svm.SVC"}},
            **changes,
        }
    )


def both(folder: Path, data: dict) -> tuple[PublicData, Records, Shards]:
    """The public data, the private records that the driver reads, and the shards that it leaves to the workers."""
    settings = config(data).data
    (public, read), (beside_shards, left) = load(settings, None, folder), load(settings, None, folder, by_workers=True)
    np.testing.assert_array_equal(public.X_public, beside_shards.X_public)
    assert isinstance(left, Shards)
    assert public.per_person == beside_shards.per_person == is_per_person(read) == is_per_person(left)
    return public, records_of(read), left


@pytest.mark.parametrize("source", ["csv", "npz", "parquet"])
def test_parts_are_the_same_whoever_reads_them(source: str, tmp_path: Path) -> None:
    _, read, left = both(tmp_path, write(tmp_path, source))
    assert len(read.X) == 30 + 31 + 32 + 33
    assert read.X.shape[1:] == (3,)
    assert is_per_person(left)
    with pytest.raises(DataError, match="not here"):
        records_of(left)
    for split in (Split(N_PARTS), Split(N_PARTS, rate=0.3, max_parts=4)):
        records = (read.X, read.y, read.ids, KEY, N_PARTS)
        whole = (
            split_into_parts(*records) if split.rate is None else subsample_parts(*records, split.rate, split.max_parts)
        )
        paths = left.paths
        for spread in ([paths], [paths[:1], paths[1:]], [paths[1::2], paths[::2]]):
            readers = [ShardReader(replace(left, paths=some), KEY, split) for some in spread]
            for part, rows in enumerate(whole):
                X, y = Block.merged([reader.part(part) for reader in readers])
                np.testing.assert_array_equal(X, read.X[rows])
                np.testing.assert_array_equal(y, read.y[rows])


def test_the_sources_agree_and_the_digest_knows_the_records_only(tmp_path: Path) -> None:
    digests = set()
    for number, source in enumerate(["csv", "npz", "csv"]):
        folder = tmp_path / str(number)
        *_, left = both(folder, write(folder, source))
        paths = left.paths[::-1] if number else left.paths
        readers = [ShardReader(replace(left, paths=some), KEY, Split(3)) for some in (paths[:1], paths[1:])]
        summaries = [summary for reader in readers if isinstance(summary := reader.load(), Summary)]
        assert sum(summary.records for summary in summaries) == 126
        digests.add(sum(summaries, Summary()).text)
    assert len(digests) == 1


def test_a_reader_that_fails_while_it_reads_again_starts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of its records must never be taken for all of them."""
    *_, left = both(tmp_path, write(tmp_path, "csv"))
    reader, read, failures = ShardReader(left, KEY, Split(3)), shards._records_in, [MemoryError()]
    whole = [len(reader.part(number).y) for number in range(3)]
    reader.close()

    def fails_once(path: str, format: Format) -> Iterator[Records]:
        if path == left.paths[1] and failures:
            raise failures.pop()
        yield from read(path, format)

    monkeypatch.setattr(shards, "_records_in", fails_once)
    with pytest.raises(MemoryError):
        reader.part(0)
    assert [len(reader.part(number).y) for number in range(3)] == whole


def test_the_digest_knows_what_stands_under_an_id_and_the_key(tmp_path: Path) -> None:
    """Else a run could go on with a record that changed under its id, or who guesses the records could check that."""

    def digest(key: bytes = KEY) -> str:
        *_, left = both(tmp_path, data)
        summary = ShardReader(left, key, Split(3)).load()
        assert isinstance(summary, Summary)
        return summary.text

    data = write(tmp_path, "csv")
    before = digest()
    assert digest() == before != digest(b"another key" * 3)
    shard = tmp_path / "shard-1.csv"
    for column, other in (("age", "99"), ("sick", "yes")):
        lines = shard.read_text().splitlines()
        number, cells = lines[0].split(",").index(column), lines[3].split(",")
        cells[number] = other if cells[number] != other else "no"
        shard.write_text("\n".join([*lines[:3], ",".join(cells), *lines[4:]]) + "\n")
        assert digest() != before
        shard.write_text("\n".join(lines) + "\n")
    assert digest() == before


def test_the_digest_knows_what_is_under_an_id(tmp_path: Path) -> None:
    """One cell of one record, in any shard, under the same ids: not the data that a run was begun with."""
    data = write(tmp_path, "csv", n_shards=2)
    digests = []
    for changed in (None, 0, 1):
        write(tmp_path, "csv", n_shards=2)
        if changed is not None:
            path = tmp_path / f"shard-{changed}.csv"
            header, first, *rest = path.read_text().splitlines()
            cells = dict(zip(header.split(","), first.split(","), strict=True))
            first = ",".join((cells | {"age": "999"}).values())
            path.write_text("\n".join([header, first, *rest]) + "\n")
        *_, left = both(tmp_path, data)
        readers = [ShardReader(replace(left, paths=(path,)), KEY, Split(3)) for path in left.paths]
        summaries = [summary for reader in readers if isinstance(summary := reader.load(), Summary)]
        digests.append(sum(summaries, Summary()).text)
    assert len(set(digests)) == 3


@pytest.mark.parametrize(
    ("shard", "says"),
    [
        (None, r"shard-1\.csv: no such file on"),
        ("age,who,sick\n1,a,no\n", r"shard-1\.csv: no column 'sex', which the public file has"),
        ("age,sex,who\n1,f,a\n", r"shard-1\.csv: no column 'sick' \(data\.label\)"),
        ("age,sex,sick\n1,f,no\n", r"shard-1\.csv: no column 'who' \(data\.id\)"),
        ("age,sex,who,sick,x\n1,f,a,no,1\n", r"shard-1\.csv: column 'x' is not in the public file"),
        ("age,sex,who,sick\n1,f,a,maybe\n", r"shard-1\.csv: column 'sick', row 0 .* not among data\.classes"),
        ("age,sex,who,sick\nold,f,a,no\n", r"shard-1\.csv: column 'age', row 0 .* not a finite number"),
        ("age,sex,who,sick\n,f,a,no\n", r"shard-1\.csv: column 'age', row 0 .* not a finite number"),
        ("age,sex,who,sick\n1,f\n", r"shard-1\.csv, row 0 .*: not as many fields"),
        ("", r"shard-1\.csv: is empty"),
    ],
)
def test_mistakes_name_their_shard(shard: str | None, says: str, tmp_path: Path) -> None:
    data = write(tmp_path, "csv") | {"private": [f"shard-{i}.csv" for i in range(3)]}
    *_, left = both(tmp_path, data)
    (tmp_path / "shard-1.csv").unlink() if shard is None else (tmp_path / "shard-1.csv").write_text(shard)
    answer = ShardReader(left, KEY, Split(3)).load()
    assert isinstance(answer, str)
    with pytest.raises(DataError, match=says):
        raise DataError(answer)
    with pytest.raises(DataError, match=says):
        load(config(data).data, None, tmp_path)


def test_what_cannot_be_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    data = write(tmp_path, "csv")
    with pytest.raises(DataError, match="no file here matches"):
        load(config(data | {"private": "none-*.csv"}).data, None, tmp_path)
    with pytest.raises(DataError, match="listed twice"):
        load(config(data | {"private": ["shard-0.csv", "shard-*.csv"]}).data, None, tmp_path)
    with pytest.raises(ConfigError, match="names no public file; add public"):
        config({key: value for key, value in data.items() if key != "public"})
    with pytest.raises(ConfigError, match="split is for one file"):
        config(data | {"split": "part"})
    with pytest.raises(ConfigError, match="read_by"):
        config(data | {"read_by": "nobody"})
    npz = write(tmp_path, "npz") | {"ids": False}
    with pytest.raises(DataError, match=r"shard-0\.npz: holds ids"):
        load(config(npz).data, None, tmp_path)


@pytest.mark.parametrize("source", ["csv", "npz", "parquet"])
def test_batches_change_nothing(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records, their number, and the row that an error names, with one batch or many, however an archive is saved."""
    data = write(tmp_path, source)
    _, read, left = both(tmp_path, data)
    whole = ShardReader(left, KEY, Split(N_PARTS))
    found = whole.load()
    monkeypatch.setattr(shards, "_MAX_ROWS_AT_ONCE", 7)
    if source == "npz":
        for number, by_columns in ((0, True), (1, False)):
            with np.load(tmp_path / f"shard-{number}.npz") as arrays:
                X = np.asfortranarray(arrays["X"]) if by_columns else arrays["X"]
                np.savez_compressed(tmp_path / f"shard-{number}.npz", X=X, y=arrays["y"], id=arrays["id"])
    in_batches = ShardReader(left, KEY, Split(N_PARTS))
    assert in_batches.load() == found
    for part in range(N_PARTS):
        for one, other in zip(*(Block.merged([some.part(part)]) for some in (whole, in_batches)), strict=True):
            np.testing.assert_array_equal(one, other)
    assert (records_of(load(config(data).data, None, tmp_path)[1]).X == read.X).all()
    columns = table(30, 0)
    save(
        tmp_path / f"shard-0.{source}",
        columns | {"sick": np.array([*columns["sick"][:23], "?", *columns["sick"][24:]])},
        source,
    )
    assert "row 23 (counted from 0)" in str(in_batches.load())
    if source == "npz":
        whole_batches = {name: values[:28] for name, values in columns.items()}
        save(tmp_path / "shard-0.npz", whole_batches | {"sick": np.repeat(columns["sick"], 2)[:35]}, source)
        assert "not as many labels as records" in str(in_batches.load())


def test_readers_leave_out_what_was_forgotten(tmp_path: Path) -> None:
    """A run that forgot where its driver read goes on where workers do."""
    settings = config(write(tmp_path, "csv"), backend="local")
    public, read, left = both(tmp_path, settings.data.model_dump(exclude_unset=True))
    with Run.create(tmp_path / "run", settings) as run:
        drop_forgotten(public, read, run)
        forget(settings, public, read, run, ["p7"], [])
        kept = drop_forgotten(public, left, run)
        assert isinstance(kept, Shards)
        found = ShardReader(kept, run.key, Split(N_PARTS)).load()
        assert isinstance(found, Summary)
        assert found.text == (run.private / "records_digest").read_text()
        assert 0 < found.records == len(records_of(drop_forgotten(public, read, run))) < len(read)


def test_who_reads_is_no_part_of_a_run(tmp_path: Path) -> None:
    data = write(tmp_path, "csv")
    assert len({config(data | {"read_by": who}).digest() for who in (None, "driver", "workers")}) == 1
    said = {(who, where): read_by_workers(config(data | {"read_by": who}).data, where)
            for who in (None, "driver", "workers") for where in (False, True)}  # fmt: skip
    assert [case for case, by_workers in said.items() if by_workers] == [
        (None, True), ("workers", False), ("workers", True)
    ]  # fmt: skip
    assert not read_by_workers(config(data | {"private": "shard-0.csv"}).data, on_cluster=True)


@pytest.mark.usefixtures("local_ray")
def test_votes_are_the_same_and_a_reader_that_dies_is_made_up_for(tmp_path: Path) -> None:
    import ray

    public, read, left = both(tmp_path, write(tmp_path, "csv"))
    kinds, assignment = [Recipe("sklearn.naive_bayes.GaussianNB", {})], [0] * N_PARTS
    parts = split_into_parts(read.X, read.y, read.ids, KEY, N_PARTS)
    teaching = Teaching(kinds, 2, 0, assignment)
    alone = Worker(teaching)
    for job in teaching.jobs():
        alone.train(job, {p: (read.X[parts[p]], read.y[parts[p]]) for p in job.parts})
    readers = Readers(left, KEY, Split(N_PARTS))
    assert readers.records == len(read.X)
    pool = Pool(teaching, InMemory(), RaySettings(workers=2))
    pid = ray.get(readers.actors[0].__ray_call__.remote(lambda self: os.getpid()))
    killed = []

    def done(count: int) -> None:
        if not killed and count >= 2:
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    pool.train(lambda part: RemotePart(readers.actors, part), done)
    assert killed
    counts = sum_counts(pool.voters(public.X_public), N_PARTS)
    np.testing.assert_array_equal(counts, alone.count(public.X_public).counts)
    pool.close()
    readers.close()
    (tmp_path / "shard-2.csv").unlink()
    with pytest.raises(DataError, match=r"shard-2\.csv: no such file on .*data.read_by: driver"):
        Readers(left, KEY, Split(N_PARTS))


@pytest.mark.parametrize("part", ["public", "test"])
@pytest.mark.parametrize("several", [False, True])
def test_a_private_file_by_another_name_is_refused(part: str, several: bool, tmp_path: Path) -> None:
    data = write(tmp_path, "csv", n_shards=2) | ({} if several else {"private": "shard-0.csv"})
    (tmp_path / "link.csv").symlink_to(tmp_path / "shard-0.csv")
    for name in ("link.csv", str(tmp_path / "shard-0.csv"), f"../{tmp_path.name}/shard-0.csv"):
        with pytest.raises(DataError, match=rf"^data.{part} = .*: is a private file by another name"):
            load(config(data | {part: name}).data, tmp_path, tmp_path)
