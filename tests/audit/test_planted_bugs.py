"""Bugs planted in the real code path, each found by the audit that should find it; and none in the right code.

Every bug is in a copy of the real thing: a subclass of it, or one of its functions replaced for a test. Bounds that
accuse hold with probability 99.9 % at least; where the right code is audited, a false alarm has probability 1e-6.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import pate.baselines.dp_sgd as sgd
from pate.audit import mechanism
from pate.audit.mechanism import FEW_DRAWS, audit_mechanism, audit_sensitivity
from pate.audit.one_run import (
    OneRun,
    alone,
    audit_clipping,
    audit_erm,
    audit_gradients,
    audit_inputs,
    audit_pipeline,
    audit_sampling,
    spikes,
)
from pate.baselines import _per_example as networks
from pate.baselines import sampling
from pate.baselines.dp_erm import DPLinearClassifier
from pate.baselines.dp_sgd import DPSGDClassifier
from pate.boundary import _aggregator as aggregator
from pate.config import Config, parse_config
from pate.data import partition
from pate.data.private import Records
from pate.data.public import PublicData
from pate.mechanisms import GNMax, Histogram, LNMax
from pate.mechanisms.noisy_max import argmax_with_random_ties
from pate.voters import voters_of
from pate.voters.neighbours._cells import CellVote
from pate.voters.teachers._worker import Worker

SURE = 1 - 1e-6
RNG = np.random.default_rng(0)
PUBLIC = RNG.normal(size=(200, 5))
RECORDS = Records(RNG.normal(size=(200, 5)), RNG.integers(0, 4, 200))
DATA = PublicData(PUBLIC, tuple("abcd")), RECORDS
STUDENT = {"name": "supervised", "params": {"estimator": "sklearn.naive_bayes.GaussianNB"}}
TREES = "sklearn.tree.DecisionTreeClassifier"


def teachers(**changed) -> Config:
    return parse_config(
        {
            "data": {"source": "arrays"},
            "n_teachers": 10,
            "teachers": [{"name": TREES, "params": {"max_depth": 2}}],
            "mechanism": {"name": "gnmax", "sigma": 3},
            "budget": {"max_queries": 40},
            "student": STUDENT,
            "backend": "local",
            **changed,
        }
    )


def neighbours(cells=40, scale=2.0) -> Config:
    return parse_config(
        {
            "data": {"source": "arrays"},
            "voters": "neighbours",
            "neighbours": {"cells": cells},
            "mechanism": {"name": "histogram", "scale": scale},
            "budget": {"delta": 1e-9},
            "student": STUDENT,
        }
    )


def in_one_run(config: Config, place: int = 0, **options: Any) -> OneRun:
    """What the audit in one run shows that has this place among those of the voters."""
    config = alone(config)
    audit = voters_of(config).one_run_audits()[place]
    return audit_pipeline(audit, *DATA, delta=config.budget.delta, **options)


# the mechanism


@dataclass(frozen=True)
class HalfTheNoise(LNMax):
    def release(self, counts, entropy=os.urandom):
        return LNMax(self.scale / 2).release(counts, entropy)


@dataclass(frozen=True)
class HalfTheGaussianNoise(GNMax):
    def release(self, counts, entropy=os.urandom):
        return GNMax(self.sigma / 2).release(counts, entropy)


@dataclass(frozen=True)
class HalfTheNoiseOfCounts(Histogram):
    def release_counts(self, counts, entropy=os.urandom):
        return Histogram(self.scale / 2).release_counts(counts, entropy)


@dataclass(frozen=True)
class NoNoiseForOneClass(LNMax):
    def release(self, counts, entropy=os.urandom):
        noise = self.noise.sample(counts.shape, entropy)
        noise[:, 1] = 0
        return argmax_with_random_ties(counts + noise, entropy)


@pytest.mark.parametrize(
    ("broken", "single"),
    [
        (HalfTheNoise(4.0), False),
        pytest.param(HalfTheGaussianNoise(2.0), False, marks=pytest.mark.slow),
        (HalfTheNoiseOfCounts(4.0), True),
        (NoNoiseForOneClass(4.0), False),
    ],
)
def test_too_little_noise_is_found_by_draws(broken, single):
    found = audit_mechanism(broken, n_teachers=20, n_classes=4, confidence=0.999, draws=FEW_DRAWS, single=single)
    assert not found.repeats
    assert found.refutes, found


def a_seed_for_every_aggregator(monkeypatch):
    made = aggregator.Aggregator.__init__

    def init(self, *arguments, **named):
        made(self, *arguments, **named)
        self._entropy = np.random.default_rng(0).bytes

    monkeypatch.setattr(aggregator.Aggregator, "__init__", init)


def a_seed_for_every_process(monkeypatch):
    generator, made = np.random.default_rng(0), aggregator.Aggregator.__init__

    def init(self, *arguments, **named):
        made(self, *arguments, **named)
        self._entropy = generator.bytes

    monkeypatch.setattr(aggregator.Aggregator, "__init__", init)


@pytest.mark.parametrize("plant", [a_seed_for_every_aggregator, a_seed_for_every_process])
def test_noise_from_a_seed_is_found_as_it_comes_again(plant, monkeypatch):
    @dataclass(frozen=True)
    class MadeInAFunction(GNMax):  # which cannot be pickled
        """A mechanism of the user's own."""

    plant(monkeypatch)
    found = audit_mechanism(MadeInAFunction(3.0), n_teachers=20, n_classes=3, confidence=SURE, draws=10_000)
    assert found.repeats
    assert found.refutes


@pytest.mark.slow
def test_noise_from_a_seed_is_found_by_canaries_too(monkeypatch):
    a_seed_for_every_aggregator(monkeypatch)
    found = in_one_run(neighbours(), canaries=200, confidence=0.999)
    assert found.score == "replay"
    assert found.correct == found.guesses
    assert found.refutes


# the votes


def in_two_parts(monkeypatch):
    split = partition.split_into_parts

    def twice(*arguments):
        parts = split(*arguments)
        return [np.concatenate([rows, parts[i - 1]]) for i, rows in enumerate(parts)]

    monkeypatch.setattr(partition, "split_into_parts", twice)


def by_position(monkeypatch):
    monkeypatch.setattr(partition, "assign_parts", lambda identities, _, n: np.arange(len(identities)) % n)


def weighed_by_accuracy(monkeypatch):
    """A teacher that is right about its records counts for more: how good it is leaks into what is released."""
    train, accuracy = Worker.train, {}

    def trained(self, job, data):
        result = train(self, job, data)
        for part, (X, y) in data.items():
            _, teacher = self._teachers[part]
            accuracy[part] = float((teacher.predict(X) == y).mean())
        return result

    def weighed(self, X, *_seen):
        counts, rows = np.zeros((len(X), self._n_classes), dtype=np.int64), np.arange(len(X))
        for part, (_, teacher) in self._teachers.items():
            counts[rows, self._votes(part, teacher, X)] += round(100 * accuracy[part])
        return counts

    monkeypatch.setattr(Worker, "train", trained)
    monkeypatch.setattr(Worker, "_count", weighed)


@pytest.mark.parametrize("plant", [in_two_parts, by_position, weighed_by_accuracy])
def test_votes_that_move_too_far_are_found_by_counting_again(plant, monkeypatch):
    """The key is fixed, and with it which records are tried where: nothing of it is left to chance."""
    monkeypatch.setattr(mechanism.secrets, "token_bytes", lambda n: bytes([3]) * n)
    plant(monkeypatch)
    found = audit_sensitivity(teachers(), *DATA, tries=1)
    assert found.refutes, found
    assert found.epsilon_shown > found.epsilon_claimed


def test_a_second_vote_is_found_by_counting_again_and_by_canaries(monkeypatch):
    config = neighbours(cells=80, scale=2.0)
    assert not audit_sensitivity(config, *DATA, tries=1).refutes
    count = CellVote.count

    def thirty_votes(self, X, y):
        return 30 * count(self, X, y)

    monkeypatch.setattr(CellVote, "count", thirty_votes)
    assert audit_sensitivity(config, *DATA, tries=1).refutes
    found = in_one_run(config, canaries=1000, confidence=0.999)
    assert found.refutes, found


# DP-SGD


def model(cls=DPSGDClassifier, **changed):
    given = {"sigma": 8.0, "delta": 1e-7, "n_records": 40, "lot_size": 20, "epochs": 5.0, "clip_norm": 0.5}
    return cls(**{"classes": range(3), "model": "linear", "accountant": "rdp", **given, **changed})


def clipped_after_the_sum(way, network, clip_norm):
    unclipped = CLIPPED_SUM(way, network, 1e9)

    def summed(inputs, targets, draws=None):
        parts = unclipped(inputs, targets, draws)
        norm = float(torch.cat([part.reshape(-1) for part in parts]).norm())
        return [part * min(1.0, clip_norm / max(norm, 1e-12)) for part in parts]

    return summed


CLIPPED_SUM = sgd.clipped_sum


def test_clipping_after_the_sum_is_found(monkeypatch):
    right = audit_clipping(model())
    assert right.epsilon_lower == pytest.approx(right.epsilon_claimed)
    assert not right.refutes
    monkeypatch.setattr(sgd, "clipped_sum", clipped_after_the_sum)
    found = audit_clipping(model())
    assert found.refutes
    assert "by 2.000" in found.score


class ForgetsNoiseOnce(DPSGDClassifier):
    """In one of ten steps."""

    def _with_noise(self, *arguments):
        steps = getattr(self, "steps_", 0)
        self.steps_ = steps + 1
        sigma, self.sigma_ = self.sigma_, 0.0 if steps % 10 == 4 else self.sigma_
        noisy = super()._with_noise(*arguments)
        self.sigma_ = sigma
        return noisy


def test_noise_forgotten_in_one_of_ten_steps_is_found():
    found = audit_gradients(model(ForgetsNoiseOnce), canaries=500, confidence=0.999)
    assert found.score == "exact gradients"
    assert found.refutes, found


class Shuffled:
    """Lots by shuffling: every record in one of 1/rate lots in a row."""

    def __init__(self) -> None:
        self.step = 0

    def __call__(self, n, rate, entropy):
        lots = round(1 / rate)
        if self.step % lots == 0:
            self.lot_of = np.random.default_rng().integers(0, lots, n)
        self.step += 1
        return self.lot_of == (self.step - 1) % lots


@pytest.mark.slow
def test_shuffled_lots_are_found_at_a_large_delta(monkeypatch):
    """At δ = 1e-5 no number of runs that anybody could wait for shows it; at 0.65 a hundred do."""
    monkeypatch.setattr(sampling, "bernoulli", Shuffled())
    found = audit_sampling(model(), runs=120, confidence=0.999)
    assert found.refutes, found


def test_published_statistics_of_batches_are_found(monkeypatch):
    """DP-SGD refuses such a network and puts buffers back: both are taken away here."""
    monkeypatch.setattr(networks, "_refuse_memory", lambda *_: None)
    monkeypatch.setattr(sgd.Buffers, "put_back", lambda _: None)
    leaky = model(model="support.leaky_network.LeakyNet", model_params={"size": 60, "n_classes": 3})
    X, y = np.zeros((40, 60), dtype=np.float32), RNG.integers(0, 3, 40)
    canaries = spikes((60,), 60), np.zeros(60, dtype=np.int64)
    found = audit_inputs(leaky, X, y, *canaries, confidence=0.999)
    assert "running_mean" in found.score
    assert found.refutes, found
    assert not audit_inputs(model(), X, y, *canaries, confidence=SURE).refutes


# the right code


@pytest.mark.parametrize("config", [teachers(), neighbours()], ids=["teachers", "neighbours"])
def test_the_right_pipeline_is_not_accused(config):
    """False alarm: 1e-6 each."""
    for place in range(2 if config.voters == "neighbours" else 1):
        found = in_one_run(config, place, canaries=200, confidence=SURE)
        assert not found.refutes, found
    counted = audit_sensitivity(config, *DATA, tries=1)
    assert not counted.refutes
    assert counted.epsilon_shown <= counted.epsilon_claimed


def test_right_baselines_are_not_accused():
    """False alarm: 1e-6 each."""
    assert not audit_gradients(model(), canaries=150, confidence=SURE).refutes
    assert not audit_sampling(model(), runs=20, confidence=SURE).refutes
    assert not audit_erm(DPLinearClassifier(1.0, n_records=100), runs=150, confidence=SURE).refutes


class HalfTheNoiseOfErm(DPLinearClassifier):
    def _release(self, loss, rows, signs, epsilon):
        return super()._release(loss, rows, signs, 8 * epsilon)


def test_too_little_noise_in_dp_erm_is_found():
    broken = HalfTheNoiseOfErm(1.0, n_records=100, loss="huber", method="objective")
    assert audit_erm(broken, runs=600, confidence=0.999).refutes
