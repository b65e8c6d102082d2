"""Networks trained together are as if trained apart."""

from __future__ import annotations

import numpy as np
import pytest

from pate.teachers.network import Network, diverged, fit_stack

PARAMETERS = [
    {"architecture": "mlp", "hidden": 8, "steps": 30},
    {"architecture": "mlp", "hidden": 6, "depth": 2, "steps": 30},
    {"architecture": "cnn", "channels": 2, "hidden": 8, "steps": 20, "shift": 1, "turn": 20},
]


def records(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    X = rng.random((n, 8, 8)).astype(np.float32)
    X[:, 0, :3] = np.eye(3)[y] * 3
    return X, y


def trained(parameters: dict, data: list) -> list[dict]:
    networks = [Network(random_state=seed, **parameters) for seed in range(len(data))]
    fit_stack(networks, data, 3)
    return [network.weights() for network in networks]


@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
def test_a_stack_agrees_with_networks_trained_alone(parameters: dict) -> None:
    data = [records(n, n) for n in (30, 41, 7)]
    stacked = trained(parameters, data)
    for seed, (X, y) in enumerate(data):
        alone = Network(random_state=seed, **parameters).fit(X, y).weights()
        for name, tensor in alone.items():
            np.testing.assert_allclose(stacked[seed][name].numpy(), tensor.numpy(), atol=2e-3)


@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
def test_a_record_changes_its_own_slot_only(parameters: dict) -> None:
    """Bit for bit, also if a part grows, empties, or holds what is no number."""
    data = [records(30, 1), records(41, 2), records(25, 3)]
    before = trained(parameters, data)
    X, y = data[1]
    broken = X.copy()
    broken[4] = np.nan
    for other in [(X[1:], y[1:]), (np.concatenate([X, X[:1] + 1]), np.append(y, 2)), (X[:0], y[:0]), (broken, y)]:
        after = trained(parameters, [data[0], other, data[2]])
        for slot in (0, 2):
            for name, tensor in before[slot].items():
                assert np.array_equal(tensor.numpy(), after[slot][name].numpy())
        assert any(not np.array_equal(t.numpy(), after[1][n].numpy()) for n, t in before[1].items())


def test_divergence_is_seen_slot_by_slot() -> None:
    bad, good = records(30, 1), records(30, 2)
    bad[0][0] = np.inf
    networks = [Network(random_state=0, **PARAMETERS[0]), Network(random_state=1, **PARAMETERS[0])]
    fit_stack(networks, [bad, good], 3)
    assert [diverged(network) for network in networks] == [True, False]


def test_a_stack_learns() -> None:
    """Also in a part that lacks a class."""
    data = [records(60, seed) for seed in range(4)]
    data[2] = data[2][0][data[2][1] != 1], data[2][1][data[2][1] != 1]
    networks = [Network(random_state=seed, architecture="mlp", hidden=16, steps=80) for seed in range(4)]
    fit_stack(networks, data, 3)
    for network, (X, y) in zip(networks, data, strict=True):
        assert (np.unique(y)[network.predict(X)] == y).mean() > 0.9


def test_batch_norm_is_not_stacked_and_votes_one_by_one() -> None:
    """A stack carries weights alone; and a vote on an example must not depend on what else is asked."""
    assert Network(architecture="mlp").stackable
    assert not Network(architecture="mlp", batch_norm=True).stackable
    X, y = records(30, 1)
    network = Network(architecture="mlp", hidden=8, steps=20, batch_norm=True, random_state=0).fit(X, y)
    alone = np.concatenate([network.predict_proba(X[i : i + 1]) for i in range(len(X))])
    np.testing.assert_allclose(network.predict_proba(X), alone, atol=1e-5)
