"""Which columns `pate init` takes for a person's number: by their names, whatever language and order of words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate.data._column_inference import person_columns

NUMBERS = [
    *("Personen-Nr", "patient_no", "Nr Patient", "Versichertennummer", "kunden_id", "MRN", "patientID", "PatNr"),
    *("Mitgliedsnummer", "Krankenversichertennummer", "código del paciente", "N° de patient", "numéro d'assuré"),
    *("id_paciente", "codice_paziente", "klantnummer", "personnummer", "numer pacjenta", "Lfd. Patienten-Nr"),
    *("medical_record_number", "social security number", "member", "customer uid", "Schüler-Nr", "ID DES KUNDEN"),
]
OTHERS = [
    *("age", "Patientenalter", "patient_age", "Fall-Nr", "order_no", "visit_id", "record_id", "ward", "no", "valid"),
    *("solid", "name", "personal", "user_agent", "account_balance", "hospital_id", "Hausnummer", "n", "zip code", ""),
]


@pytest.mark.parametrize("name", NUMBERS)
def test_a_persons_number_in_several_languages(name: str) -> None:
    assert person_columns([name]) == [name]
    assert person_columns([], [name]) == [name]  # also where the public file has it


@pytest.mark.parametrize("name", OTHERS)
def test_another_number_or_another_column_of_a_person(name: str) -> None:
    assert person_columns([name]) == []


def test_the_likeliest_comes_first() -> None:
    found = person_columns(["id", "Mitarbeiter-Nr", "Kunde", "Kunden-Nr"], ["Patient"])
    assert found == ["Kunden-Nr", "Mitarbeiter-Nr", "Kunde", "Patient", "id"]
    assert person_columns([], ["id"]) == []  # a number of the row, which everybody may see


PARTS = st.tuples(
    st.sampled_from(["Patient", "kunde", "person", "MEMBER", "Client", "paciente"]),
    st.sampled_from(["no", "ID", "Nr", "Nummer", "number", "código"]),
).flatmap(st.permutations)


@given(PARTS, st.sampled_from([" ", "_", "-", ".", " - ", "/"]))
def test_words_for_person_and_number_in_any_order_and_writing(parts: list[str], sign: str) -> None:
    assert person_columns([sign.join(parts)]) == [sign.join(parts)]
    assert person_columns(["".join(part.capitalize() for part in parts)])
    assert person_columns(["age", sign.join([*parts, "name"])]) == []


@given(st.text(max_size=200), st.integers(1, 1000))
def test_any_name_is_taken(name: str, times: int) -> None:
    assert person_columns([name * times]) in ([], [name * times])
