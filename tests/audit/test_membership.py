"""Membership inference where the truth is known: all of a leak is found, and none where there is none."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom
from support.subjects import OVERFITTING, Memory, made_subject, random_examples

from pate.audit import shadow_models
from pate.audit._target import Baseline, NonprivateTrainer, Subject, TargetExamples
from pate.audit.membership import (
    CorrectnessGap,
    LabelOnly,
    LossThreshold,
    asked_about,
    auc_error,
    confidence,
    epsilon_shown,
)
from pate.audit.results import AttackResult, Options
from pate.audit.shadow_models import RMIA, LiRA, halves, shadows_for
from pate.teachers import Recipe

OPTIONS = Options(quick=True, shadows=16, processes=1)
ATTACKS = (LossThreshold, CorrectnessGap, LabelOnly, LiRA, RMIA)
FAR = 5.4  # standard errors: 7e-8 for a finding, below 1e-6 for all of a test


def _all(subject: Subject, options: Options = OPTIONS) -> list[AttackResult]:
    return [finding for attack in ATTACKS for finding in attack().run(subject, options)]


@pytest.fixture(scope="module")
def overfitted() -> Subject:
    members, outsiders = random_examples(300, 400, 2, 1), random_examples(300, 400, 2, 2)
    return made_subject(members, outsiders, OVERFITTING.train(members.X, members.y, 0))


def test_a_memory_of_random_labels_leaks_what_theory_says() -> None:
    """It is always right on members and once in k on others, so the gap attack's AUC is 1 − 1/(2k)."""
    members, outsiders = random_examples(2000, 6, 10, 3), random_examples(2000, 6, 10, 4)
    subject = made_subject(members, outsiders, Memory.of(members.X, members.y, 10), 10)
    for attack in (CorrectnessGap, LossThreshold):
        (found,) = attack().run(subject, OPTIONS)
        assert found.members == found.outsiders == 2000
        error = 0.5 * math.sqrt(0.1 * 0.9 / 2000)  # AUC = 1 − (share of others guessed)/2
        assert found.auc == pytest.approx(0.95, abs=FAR * error)
        assert found.advantage == pytest.approx(0.9, abs=2 * FAR * error)
        assert found.epsilon_lower is not None  # no member is ever taken for another: ε is infinite, n sets the bound
        assert found.epsilon_lower > 5.0
        assert found.tpr_at_1_percent == 0.0  # a tenth of the others cannot be told from members


def test_an_overfitted_model_leaks_by_every_attack(overfitted: Subject) -> None:
    found = {finding.attack: finding for finding in _all(overfitted)}
    assert found["correctness gap"].auc == pytest.approx(0.75, abs=0.06)  # right on all members and half of others
    for name, least in (("loss threshold", 0.75), ("LiRA, online", 0.85), ("LiRA, offline", 0.8), ("RMIA", 0.85)):
        auc = found[name].auc
        assert auc is not None
        assert auc > least, name
    online, plain = found["LiRA, online"], found["loss threshold"]
    assert online.tpr_at_1_percent is not None
    assert plain.tpr_at_1_percent is not None
    assert online.tpr_at_1_percent > plain.tpr_at_1_percent
    assert online.epsilon_lower is not None
    assert online.epsilon_lower > 1.0
    assert not online.refutes  # it claims nothing


def test_nothing_is_found_in_a_model_that_never_saw_the_data(overfitted: Subject) -> None:
    others = random_examples(300, 400, 2, 5)
    never_saw = replace(overfitted, model=OVERFITTING.train(others.X, others.y, 0))
    for finding in _all(never_saw):
        assert finding.auc is not None
        assert finding.auc_error is not None
        assert abs(finding.auc - 0.5) < FAR * finding.auc_error, finding.attack


def test_nothing_is_found_if_membership_is_shuffled(overfitted: Subject) -> None:
    """Both groups were learned from: whoever tells them apart goes by something else than the model."""
    half, rows = overfitted.members, np.arange(300)
    first, second = (TargetExamples(half.X[rows[i::2]], half.y[rows[i::2]], np.arange(150)) for i in (0, 1))
    for finding in _all(replace(overfitted, members=first, outsiders=second)):
        assert finding.auc is not None
        assert finding.auc_error is not None
        assert abs(finding.auc - 0.5) < FAR * finding.auc_error, finding.attack


def test_the_bound_on_epsilon_is_seldom_too_high() -> None:
    """Of 100 bounds at 95 %, on scores that say nothing, at most so many are above 0 (false-alarm rate 1e-6)."""
    generator = np.random.default_rng(0)
    above = sum(epsilon_shown(*generator.standard_normal((2, 200)), 1e-5, 0.95, seed) > 0 for seed in range(100))
    assert above <= binom.isf(1e-6, 100, 0.05)


def test_the_half_that_chose_the_threshold_has_no_say_in_the_bound() -> None:
    """Its members are told apart perfectly, and those of the other half not at all: nothing was shown."""
    generator = np.random.default_rng([5, 1])  # as the halves are drawn
    places, members = generator.permutation(200), np.zeros(200)
    members[places[:100]] = 1.0
    assert epsilon_shown(members, np.zeros(200), 1e-5, 0.95, 5) == 0.0
    assert epsilon_shown(1 - members, np.zeros(200), 1e-5, 0.95, 5) == 0.0
    assert epsilon_shown(np.ones(200), np.zeros(200), 1e-5, 0.95, 5) > 3.0


def test_the_bound_on_epsilon_finds_randomised_response() -> None:
    """Members answer 1 with odds e to one, others 0: ε is 1, and the bound lies just below (false-alarm rate 1e-6)."""
    generator, right = np.random.default_rng(1), math.e / (1 + math.e)
    bounds = []
    for seed in range(60):
        members = (generator.random(4000) < right).astype(float)
        outsiders = (generator.random(4000) >= right).astype(float)
        bounds.append(epsilon_shown(members, outsiders, 1e-5, 0.95, seed))
    assert sum(bound > 1.0 for bound in bounds) <= binom.isf(1e-6, 60, 0.05)
    assert np.median(bounds) > 0.8


def test_the_error_of_an_auc_is_that_of_the_rank_test() -> None:
    assert auc_error(0.5, 70, 90) == pytest.approx(math.sqrt((70 + 90 + 1) / (12 * 70 * 90)))


def test_confidence_is_the_logit_of_the_true_class_however_sure_the_model_is() -> None:
    class Sure:
        def predict_proba(self, X: np.ndarray) -> np.ndarray:
            return np.array([[0.75, 0.25], [1e-9, 1.0], [0.0, 1.0]])

    found = confidence(Sure(), np.zeros((3, 1)), np.array([0, 1, 0]))  # type: ignore[arg-type]
    assert found[0] == pytest.approx(math.log(3))
    assert found[1] == pytest.approx(-math.log(1e-9))
    assert np.isfinite(found[2])


def test_every_example_is_in_half_of_the_shadow_models() -> None:
    inside = halves(16, 101, seed=0)
    assert (inside.sum(axis=0) == 8).all()
    assert len(np.unique(inside, axis=1)[0]) > 50


def test_shadow_models_go_on_where_they_were(overfitted: Subject, tmp_path: Path) -> None:
    options, asked = replace(OPTIONS, work=tmp_path), asked_about(overfitted, OPTIONS)
    whole = shadows_for(overfitted, asked, options)
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    files = sorted(folder.iterdir())
    assert len(files) == 16
    assert all(path.stat().st_mode & 0o077 == 0 for path in files)
    kept = {path: path.stat().st_mtime_ns for path in files[3:]}
    for path in files[:3]:
        path.unlink()
    again = shadows_for(overfitted, asked, options)
    assert {path: path.stat().st_mtime_ns for path in files[3:]} == kept
    np.testing.assert_array_equal(again.confidence, whole.confidence)
    assert shadows_for(overfitted, asked, replace(options, seed=1)).confidence[0, 0] != whole.confidence[0, 0]


def test_shadow_models_of_other_processes_are_the_same(overfitted: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, options = asked_about(overfitted, OPTIONS), replace(OPTIONS, shadows=4)
    here = shadows_for(overfitted, asked, options)
    monkeypatch.setattr(shadow_models, "_WORTH_A_PROCESS", 0.0)
    there = shadows_for(overfitted, asked, replace(options, processes=2))
    np.testing.assert_allclose(there.confidence, here.confidence, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_shadow_models_of_a_ray_are_the_same(overfitted: Subject) -> None:
    asked, options = asked_about(overfitted, OPTIONS), replace(OPTIONS, shadows=4)
    trainer, inside = overfitted.trainer, halves(4, 600, 0)
    there = shadows_for(overfitted, asked, options)
    for number in range(4):
        model = trainer.train(asked.X[inside[number]], asked.y[inside[number]], 1_000 + number)
        np.testing.assert_allclose(there.confidence[number], confidence(model, asked.X, asked.y), rtol=1e-3, atol=1e-3)


def test_fewer_examples_are_among_more() -> None:
    many = random_examples(100, 2, 2, 0)
    few, some = many.some(10, 7), many.some(40, 7)
    assert set(few.rows) <= set(some.rows)
    np.testing.assert_array_equal(some.some(10, 7).rows, few.rows)
    np.testing.assert_array_equal(many.X[few.rows], few.X)


def test_findings_come_back_from_json(overfitted: Subject) -> None:
    (found,) = LossThreshold().run(overfitted, OPTIONS)
    assert AttackResult.from_json(found.to_json()) == found
    assert AttackResult("a", "m", "nothing", epsilon_lower=math.inf).to_json()["epsilon_lower"] is None
    assert len(found.at_risk) == 20


@pytest.mark.slow
def test_mnist_leaks_as_much_as_the_literature_reports(real_data: Path) -> None:
    """Shokri et al. 2017, Table II: attack precision 0.517 on MNIST where training beats test accuracy by 5.6 points.

    A network with a gap like that here: the loss threshold's best accuracy is as near to it as 1,600 records allow
    (two standard errors, 0.025). It is deterministic, so that it cannot fail by chance.
    """
    from pate.data._settings import BenchmarkData
    from pate.data._sources import load
    from pate.data.private import records_of

    _, private = load(BenchmarkData(source="mnist"), real_data, real_data)
    both = records_of(private)  # test images are by other writers, who are told apart without any leak
    members, outsiders = (
        TargetExamples(both.X[rows], both.y[rows], np.arange(1600)) for rows in (slice(1600), slice(1600, 3200))
    )
    params = {"architecture": "mlp", "hidden": 128, "steps": 150, "batch_size": 64, "learning_rate": 2e-3}
    trainer = NonprivateTrainer(Recipe("network", params), 10)
    subject = made_subject(members, outsiders, trainer.train(members.X, members.y, 0), 10)
    gap, loss = (next(iter(attack().run(subject, Options()))) for attack in (CorrectnessGap, LossThreshold))
    assert gap.advantage == pytest.approx(0.056, abs=0.025)
    assert loss.advantage is not None
    assert 0.5 + loss.advantage / 2 == pytest.approx(0.517, abs=0.025)


def test_shadow_models_of_a_baseline_take_lots_of_the_same_share() -> None:
    """A lot of 8,192 of 60,000 records is one of 41 of 300: as many steps, and never larger than what there is."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 5)).astype(np.float32), rng.integers(0, 2, 300)
    params = {"model": "linear", "lot_size": 8192, "epochs": 1, "micro_batch": 512}
    trained = Baseline("dp_sgd", 2, 8.0, 1e-5, params, n_records=60_000).train(X, y, seed=0)
    assert trained.model.lot_size == 41
    assert trained.predict_proba(X).shape == (300, 2)
