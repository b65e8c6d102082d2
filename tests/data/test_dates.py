"""What columns of dates become: by each record's own dates, the same in another year, and as `datetime` says."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pate.data._column_inference import offered
from pate.data._columns import PARTS, features_of_date, names_of, years_of
from pate.data._formats import Table
from pate.data._model_input import table_in
from pate.data._records import Format, features_of
from pate.data._settings import CsvData
from pate.data._sources import load
from pate.data.private import Records, records_of
from pate.data.public import PublicData, category_columns
from pate.errors import DataError

CYCLE = timedelta(days=146_097)
"""Four hundred years: as many whole weeks, and the same months and leap years again."""
FEATURES = ["month", "weekday", "hour", "days since born", "hours since born", "years since born"]
MOMENTS = st.datetimes(datetime(1600, 1, 1), datetime(2200, 1, 1)).map(lambda moment: moment.replace(microsecond=0))
COLUMNS = ["born,seen,sex,ill"]
DATES = {"born": "%Y-%m-%d", "seen": "%Y-%m-%d %H:%M"}
SETTINGS: dict[str, Any] = {
    "source": "csv", "private": "private.csv", "public": "public.csv", "label": "ill", "classes": ["no", "yes"],
    "categories": {"sex": ["f", "m"]}, "dates": DATES,
    "date_features": {"born": [], "seen": ["month", "weekday", "hour", "years since born"]},
}  # fmt: skip


def years(**columns: list[datetime | float]) -> Callable[[str], np.ndarray]:
    return lambda name: np.array([m if isinstance(m, float) else years_of(m) for m in columns[name]])


def made(seen: list[datetime | float], born: list[datetime | float]) -> np.ndarray:
    return np.array(list(features_of_date("seen", FEATURES, years(seen=seen, born=born)).values())).T


@given(st.lists(st.tuples(MOMENTS, MOMENTS), min_size=1, max_size=9))
def test_each_is_what_the_calendar_says_in_any_company_and_four_hundred_years_later(
    pairs: list[tuple[datetime, datetime]],
) -> None:
    whole = made([seen for seen, _ in pairs], [born for _, born in pairs])
    assert whole.shape[1] == len(names_of("seen", FEATURES))
    for (seen, born), row in zip(pairs, whole, strict=True):
        alone = made([seen], [born])[0]
        np.testing.assert_array_equal(alone, row)  # bit for bit
        turns = (seen.month - 1) / 12, seen.weekday() / 7, seen.hour / 24
        waves = [wave(2 * math.pi * turn) for turn in turns for wave in (math.sin, math.cos)]
        apart = (seen - born).total_seconds()
        np.testing.assert_allclose(alone[:6], waves, atol=1e-6)
        np.testing.assert_allclose(
            alone[6:], [apart / 86400, apart / 3600, apart / 86400 / 365.25], rtol=1e-6, atol=1e-6
        )
        np.testing.assert_allclose(made([seen + CYCLE], [born + CYCLE])[0], alone, rtol=1e-6, atol=1e-6)


def test_a_missing_date_is_missing_and_what_is_none_is_no_gap_whatever_the_other_is() -> None:
    now, gap, wrong = datetime(2024, 1, 1), math.nan, math.inf
    cases = [(now, gap), (gap, now), (now, wrong), (wrong, now), (wrong, wrong), (gap, wrong), (wrong, gap)]
    found = made([seen for seen, _ in cases], [born for _, born in cases])
    assert np.isnan(found[:2, 6:]).all()
    assert np.isinf(found[2:, 6:]).all()
    assert np.isnan(found[[1, 5], :6]).all()
    assert np.isinf(found[[3, 4, 6], :6]).all()


def loaded(folder: Path, private: list[str], public: list[str], **changes: Any) -> tuple[PublicData, Records]:
    for name, lines in (("private", private), ("public", public)):
        (folder / f"{name}.csv").write_text("\n".join([*COLUMNS, *lines]) + "\n")
    data, read = load(CsvData.model_validate(SETTINGS | changes), None, folder)
    return data, records_of(read)


PUBLIC = ["1990-05-01,2022-01-03 08:00,f,no", "1960-05-01,2022-07-01 20:30,m,yes", "1930-05-01,2022-12-31 00:10,f,no"]


def test_a_table_of_another_year_is_like_the_public_one(tmp_path: Path) -> None:
    """The same lines 28 years later, when weekdays and leap years come again."""
    later = [f"{int(line[:4]) + 28}{line[4:]}".replace(",2022-", ",2050-") for line in PUBLIC]
    data, records = loaded(tmp_path, later, PUBLIC)
    assert data.features == (
        *("seen: month (sin)", "seen: month (cos)", "seen: weekday (sin)", "seen: weekday (cos)"),
        *("seen: hour (sin)", "seen: hour (cos)", "seen: years since born", "sex=f", "sex=m"),
    )
    np.testing.assert_allclose(records.X[:, :6], data.X_public[:, :6], atol=1e-6)
    np.testing.assert_allclose(records.X[:, 6], data.X_public[:, 6], atol=1e-3)
    assert category_columns(data) == {"sex": {"f": 7, "m": 8}}
    assert data.y_public is not None
    assert data.y_public.tolist() == [0, 1, 0]


def test_gaps_of_dates_are_filled_feature_by_feature_and_marked_column_by_column(tmp_path: Path) -> None:
    gaps = [*PUBLIC, ",2022-03-01 10:00,f,no", "1960-05-01,,f,no"]
    data, records = loaded(tmp_path, [",,f,yes"], gaps, missing_values={"treatment": "indicator"})
    assert data.features is not None
    assert data.features[-2:] == ("born missing", "seen missing")
    assert records.X[0, -2:].tolist() == [1, 1]
    medians = np.median(data.X_public[[0, 1, 2, 3], :6], axis=0)
    np.testing.assert_allclose(records.X[0, :6], medians, atol=1e-6)
    with pytest.raises(DataError, match=r"public.csv: column 'born', row 3"):
        loaded(tmp_path, PUBLIC, gaps)
    with pytest.raises(
        DataError, match=r"private.csv: column 'born', row 0 .*the form is right, but there is no such day"
    ):
        loaded(tmp_path, ["1990-02-31,2022-01-03 08:00,f,no"], PUBLIC)


def test_the_card_says_what_dates_become(tmp_path: Path) -> None:
    data, _ = loaded(tmp_path, PUBLIC, [*PUBLIC, ",,m,no"], missing_values={"treatment": "indicator"})
    card = {"columns": dict(data.columns or {}), "shape": [data.X_public.shape[1]], "classes": ["no", "yes"]}
    format = Format.of_card(card)
    assert isinstance(format, Format)
    assert format.on_card() == data.columns
    twice = dict(data.columns or {}) | {"dates": dict.fromkeys((data.columns or {})["dates"], "%Y-%Y-%m-%d")}
    with pytest.raises(ValueError, match="nothing that can be used"):
        Format.of_card(card | {"columns": twice})
    (tmp_path / "new.csv").write_text("\n".join([*COLUMNS, *PUBLIC, "1990-01-01,,f,"]))
    table: Table = table_in(tmp_path / "new.csv", format, format.dialect)
    np.testing.assert_array_equal(features_of(table, format)[:3], data.X_public[:3])


@pytest.mark.parametrize(
    ("date_features", "words"),
    [
        ({"sex": ["month"]}, "sex: is not a column of dates"),
        ({"seen": ["year"]}, "seen: 'year' is nothing that dates become"),
        ({"seen": ["days since sex"]}, "names no other column of dates"),
        ({"seen": ["days since seen"]}, "names no other column of dates"),
        ({"seen": ["month", "month"]}, "listed twice"),
        ({"seen": []}, "seen: becomes no feature"),
    ],
)
def test_features_of_dates_that_make_no_sense_are_one_line(date_features: dict[str, list[str]], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        CsvData.model_validate(SETTINGS | {"date_features": date_features})


def test_a_column_called_as_a_feature_of_a_date_is_refused(tmp_path: Path) -> None:
    for name in ("private", "public"):
        (tmp_path / f"{name}.csv").write_text(
            "seen,seen: years since born,born,ill\n2022-01-03 08:00,3,1990-01-01,no\n"
        )
    with pytest.raises(DataError, match=r"column 'seen: years since born' is called as what data.date_features makes"):
        load(CsvData.model_validate(SETTINGS | {"categories": {}}), None, tmp_path)


def spread(first: datetime, days: float, n: int = 100, hours: bool = True) -> np.ndarray:
    moments = (first + timedelta(days=days * i / n) for i in range(n))
    return np.array([years_of(m if hours else m.replace(hour=0, minute=0, second=0, microsecond=0)) for m in moments])


def test_what_is_offered_means_the_same_in_another_year() -> None:
    born, seen = spread(datetime(1930, 1, 1), 80 * 365), spread(datetime(2022, 1, 1), 364)
    soon, later = seen + 3 / 24 / 365.25, spread(datetime(2022, 2, 1), 364, hours=False)
    assert offered({"born": born, "seen": seen, "later": later, "soon": soon}) == {
        "born": [],
        "seen": ["month", "weekday", "hour", "years since born"],
        "later": ["month", "weekday", "days since seen"],
        "soon": ["hours since seen"],
    }
    assert offered({"later": later, "seen": seen}) == {
        "later": ["month", "weekday", "days since seen"],
        "seen": ["month", "weekday", "hour"],
    }
    assert offered({}) == {}
    assert offered({"born": born}) == {"born": ["years"]}
    assert offered({"born": born, "wed": born + 30}) == {"born": ["years"], "wed": ["years since born"]}
    for dates in ({"a": seen, "b": born, "c": later}, {"a": later}, {"a": seen, "b": soon}):
        made = offered(dates)
        assert not [feature for features in made.values() for feature in features if feature == "years"]
        assert offered({name: moments + 400 for name, moments in dates.items()}) == made
        CsvData.model_validate(
            SETTINGS | {"categories": {}, "dates": dict.fromkeys(dates, "%Y-%m-%d"), "date_features": made}
        )
    assert set(PARTS) == {"month", "weekday", "hour"}


def test_an_interval_is_taken_from_the_nearest_date() -> None:
    """A rental of an hour is not to vanish in how many years somebody has been a member."""
    rng = np.random.default_rng(0)
    member = rng.uniform(20, 23, 200)
    begun = 24 + rng.uniform(0, 1, 200)
    made = offered({"member": member, "begun": begun, "ended": begun + rng.uniform(0.1, 3, 200) / (24 * 365.25)})
    assert made["ended"] == ["hours since begun"]
    assert "years since member" in made["begun"] or "days since member" in made["begun"]
