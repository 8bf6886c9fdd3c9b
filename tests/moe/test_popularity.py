"""Estimators of popularity: exact on streams made for them, better where they should be; the profile's file."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moe.popularity import (
    Accuracy,
    Blend,
    Marginal,
    Paths,
    Recent,
    count_choices,
    load_profile,
    save_profile,
    top_recall,
    total_variation,
)
from placement.errors import InputError

LAYERS, EXPERTS, TOP = 5, 12, 2


def walk(tokens, seed, start=0):
    """Tokens of one kind: the first choice moves on by its own step in each layer, the second is its neighbour."""
    chance = np.random.default_rng(seed)
    first = (start + chance.integers(0, 3, tokens)) % EXPERTS
    step = chance.integers(1, 3, tokens)
    routes = (first[:, None] + step[:, None] * np.arange(LAYERS)) % EXPERTS
    return np.stack([routes, (routes + 1) % EXPERTS], axis=2).astype(np.uint8)


def learned(estimator, *batches):
    for batch in batches:
        estimator.learn(batch)
    return estimator


def variation(estimator, batch):
    accuracy = Accuracy(k=3)
    accuracy.measure(estimator, batch, EXPERTS)
    return accuracy.variation


@given(st.integers(1, 40), st.integers(0, 5), st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_every_estimate_sums_to_the_choices_of_the_batch(tokens, batches, seed):
    seen = [walk(20, number) for number in range(batches)]
    batch = walk(tokens, 1000 + seed, start=seed)
    shape = (LAYERS, EXPERTS)
    blend = Blend(Paths(*shape), Recent(*shape))
    estimators = [Marginal(*shape), Paths(*shape), Recent(*shape), blend]
    for estimator in estimators:
        learned(estimator, *seen)
        for layer in range(LAYERS):
            estimate = estimator.ahead(layer, batch[:, :layer])
            assert (estimate >= -1e-9).all()
            assert estimate.sum() == pytest.approx(tokens * TOP if batches else tokens)
        assert estimator.load().shape == (LAYERS, EXPERTS)


def test_choices_are_counted():
    counts = count_choices(np.array([[[0, 1], [2, 3]], [[0, 2], [2, 1]]]), 4)
    assert counts.tolist() == [[2, 1, 1, 0], [0, 1, 2, 1]]


def test_paths_know_what_the_marginal_cannot():
    """Half of the training walks from elsewhere: the batch's own path says which half it belongs to."""
    seen = [walk(200, seed, start) for seed, start in enumerate((0, 6) * 5)]
    batch = walk(200, 99, start=6)
    marginal = variation(learned(Marginal(LAYERS, EXPERTS), *seen), batch)
    lengths = [variation(learned(Paths(LAYERS, EXPERTS, length), *seen), batch) for length in (1, 2, 3)]
    assert lengths[0] < 0.5 * marginal
    assert lengths[1] < lengths[0]
    assert lengths[2] < 0.1


def test_a_path_never_seen_falls_back():
    paths = learned(Paths(LAYERS, EXPERTS), walk(50, 0))
    stranger = np.full((4, 3, TOP), EXPERTS - 1, np.uint8)
    assert np.allclose(paths.ahead(3, stranger), 4 * paths.load()[3])


def test_paths_back_off_as_they_say():
    """One path seen three times: (3 x its choices + prior x the shorter path's estimate) / (3 + prior)."""
    routes = np.array([[[0], [1]]] * 3 + [[[2], [3]]])
    paths = learned(Paths(2, 4, length=1, prior=2.0), routes)
    marginal = np.array([0, 0.75, 0, 0.25])
    expected = (np.array([0, 3.0, 0, 0]) + 2 * marginal) / 5
    assert np.allclose(paths.ahead(1, np.array([[[0]]])), expected)


def test_paths_are_bounded():
    paths = learned(Paths(LAYERS, EXPERTS, most_rows=4), walk(300, 0), walk(300, 1, start=5))
    assert all(len(table.rows) <= 4 for tables in paths.tables for table in tables)


def test_recent_follows_a_change_of_traffic():
    marginal, recent = Marginal(LAYERS, EXPERTS), Recent(LAYERS, EXPERTS)
    for estimator in (marginal, recent):
        learned(estimator, *(walk(100, seed) for seed in range(10)), *(walk(100, seed, 6) for seed in range(4)))
    later = walk(100, 50, start=6)
    assert variation(recent, later) < 0.4 * variation(marginal, later)


def test_recent_remembers_batches_as_they_were():
    recent = Recent(LAYERS, EXPERTS, keep=3)
    assert recent.history().shape == (0, LAYERS, EXPERTS)
    batches = [walk(10, seed) for seed in range(5)]
    learned(recent, *batches)
    assert np.allclose(recent.history(), [count_choices(batch, EXPERTS) / 10 for batch in batches[-3:]])


def test_the_blend_trusts_whom_the_last_batches_proved_right():
    seen = [walk(200, seed, start) for seed, start in enumerate((0, 6) * 5)]
    path = learned(Paths(LAYERS, EXPERTS), *seen)
    swinging = learned(
        Blend(path, Recent(LAYERS, EXPERTS), learn_paths=False),
        *(walk(100, seed, 6 * (seed % 2)) for seed in range(20, 28)),
    )
    assert swinging.trust[1:].mean() > 0.8
    strange = [np.random.default_rng(seed).integers(8, 11, (100, LAYERS, TOP)).astype(np.uint8) for seed in range(8)]
    elsewhere = learned(Blend(path, Recent(LAYERS, EXPERTS), learn_paths=False), *strange)
    assert elsewhere.trust[1:].mean() < 0.3
    assert variation(elsewhere, strange[0]) < 0.5 * variation(path, strange[0])


def test_measures_by_hand():
    assert top_recall(np.array([3.0, 2, 1, 0]), np.array([5.0, 0, 4, 1]), 2) == 0.5
    assert total_variation(np.array([1.0, 1, 2]), np.array([2.0, 1, 1])) == 0.25
    assert total_variation(np.zeros(2), np.ones(2)) == 0


def test_a_profile_comes_back_as_it_was(tmp_path):
    paths = learned(Paths(LAYERS, EXPERTS), walk(300, 0), walk(100, 1, start=6))
    save_profile(tmp_path / "p.npz", paths)
    assert [path.name for path in tmp_path.iterdir()] == ["p.npz"]
    again = load_profile(tmp_path / "p.npz")
    batch = walk(50, 7)
    for layer in range(LAYERS):
        assert np.allclose(paths.ahead(layer, batch[:, :layer]), again.ahead(layer, batch[:, :layer]))
    again.learn(batch)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": np.array(2)}, "version 2"),
        ({"choices": np.full((LAYERS, EXPERTS), np.nan)}, "not numbers"),
        ({"choices": np.ones(3)}, r"\[layers, experts\]"),
        ({"length": np.array(9)}, "paths of 9"),
        ({"path1_layer": None}, "no `path1_layer`"),
        ({"path1_key": np.zeros(3, np.int64)}, "do not agree"),
        ({"path1_tokens": np.array(["x"])}, "damaged"),
        ({"tokens": np.array([1, 2])}, "damaged"),
        ({"version": np.array([1, 1])}, "version"),
    ],
)
def test_a_damaged_profile_is_refused_in_one_line(tmp_path, change, message):
    save_profile(tmp_path / "p.npz", learned(Paths(LAYERS, EXPERTS), walk(30, 0)))
    with np.load(tmp_path / "p.npz") as data:
        arrays = {name: data[name] for name in data.files} | change
    np.savez(tmp_path / "p.npz", **{name: value for name, value in arrays.items() if value is not None})
    with pytest.raises(InputError, match=message) as caught:
        load_profile(tmp_path / "p.npz")
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=200), st.integers(0, 2000))
@settings(max_examples=60, deadline=None)
def test_bytes_that_are_no_profile_are_told_in_one_line(tmp_path_factory, noise, at):
    path = tmp_path_factory.mktemp("profile") / "p.npz"
    save_profile(path, learned(Paths(2, 3, 1), walk(5, 0)[:, :2] % 3))
    raw = bytearray(path.read_bytes())
    raw[at : at + len(noise)] = noise
    path.write_bytes(bytes(raw))
    found: Paths | str
    try:
        found = load_profile(path)  # where the noise changed no more than numbers, or nothing
    except InputError as error:
        found = str(error)
    assert isinstance(found, Paths) or (str(path) in found and "\n" not in found)


def test_pickles_are_not_opened(tmp_path):
    buffer = io.BytesIO()
    np.savez(buffer, version=np.array(1), choices=np.array([{}], dtype=object))
    (tmp_path / "p.npz").write_bytes(buffer.getvalue())
    with pytest.raises(InputError, match="no profile of expert popularity"):
        load_profile(tmp_path / "p.npz")


def test_steps_are_remembered_in_place_of_their_sum():
    recent = Recent(1, 2, keep=3)
    recent.note(np.array([[30.0, 10.0]]), 20)
    recent.note(np.array([[20.0, 20.0]]), 20, np.array([[[2.0, 0.0]], [[0.0, 2.0]], [[1.5, 0.5]]]))
    assert recent.history().tolist() == [[[2.0, 0.0]], [[0.0, 2.0]], [[1.5, 0.5]]]
    recent.note(np.array([[10.0, 30.0]]), 20, np.zeros((0, 1, 2)))
    assert recent.history()[-1].tolist() == [[0.5, 1.5]]
    assert recent.load().sum() == pytest.approx(2)
