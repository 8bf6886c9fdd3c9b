"""How soon jobs end, learned: Kaplan and Meier's chances, Gittins' index, and what the policy makes of them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.training.worlds import job, run
from training.ending import EDGES, PRIOR, RATIO, _indices, cell_of, index_by_width, until_next_cell, width_of
from training.policies import penstock


def gittins(chance, cell):
    """The index at the beginning of a cell of a job that ends in each cell it reaches with this chance."""
    index = np.empty((1, len(chance)))
    _indices(chance[None, :], EDGES[: len(chance) + 1], index)
    return index[0, cell]


def test_the_index_is_the_best_chance_for_the_time():
    # It ends in the first cell (60 s) with 1/4, in the second (90 s) surely: to look to the end of the second is best.
    chance = np.array([0.25, 1.0])
    assert gittins(chance, 0) == pytest.approx(1 / (0.875 * 60 + 0.375 * 90))
    assert gittins(chance, 1) == pytest.approx(1 / 45)
    # Where little is gained by going on, the first cell alone counts.
    assert gittins(np.array([0.5, 0.01]), 0) == pytest.approx(0.5 / (0.75 * 60))


def test_who_still_runs_counts_as_passed_and_says_nothing_of_its_cell():
    ended, running = np.full(50, 30.0), np.full(50, 65.0)
    run_s, width = np.concatenate((ended, running)), np.zeros(100, np.int64)
    half = index_by_width(run_s, width, 50)
    surely = index_by_width(ended, width[:50], 50)
    prior = PRIOR * (1 - 1 / RATIO)
    everywhere = (50 + prior) / (100 + PRIOR)
    chance = np.full(len(EDGES) - 1, 1 - 1 / RATIO)
    chance[0] = (50 + PRIOR * everywhere) / (100 + PRIOR)
    assert half[0, 0] == pytest.approx(gittins(chance, 0))
    assert surely[0, 0] > half[0, 0]
    assert half[0, 1:] == pytest.approx(index_by_width(ended[:0], width[:0], 0)[0, 1:])


def test_without_any_job_less_attained_service_goes_first():
    nothing = index_by_width(np.zeros(1), np.array([3]), 0)
    assert (np.diff(nothing[0, :-8]) < 0).all()  # the last cells see no further than the end of time
    assert nothing[0] / 8 == pytest.approx(nothing[3])


def test_cells_and_widths():
    assert width_of(np.array([1, 2, 3, 4, 12])).tolist() == [0, 1, 2, 2, 4]
    assert cell_of(np.array([0.0, 59.0, 60.0, 150.0, 1e12])).tolist() == [0, 0, 1, 2, len(EDGES) - 2]
    assert until_next_cell(np.array([50.0, 61.0])) == 10
    assert until_next_cell(np.zeros(0)) == until_next_cell(np.array([1e12])) == np.inf


def test_widths_that_end_soon_pass_those_that_never_did(monkeypatch):
    # One-GPU jobs take an hour, two-GPU jobs a minute: once that is known, a wide one passes a narrow one.
    past = [job(n, 4000 * n, 3600 if n % 2 else 50, 1 if n % 2 else 2) for n in range(40)]
    jobs = [*past, job(40, 200_000, 3600, 1), job(41, 200_100, 50, 2)]
    assert run(jobs, 2, "penstock", information="none").finish[-2:].tolist() == [203_600, 203_650]
    monkeypatch.setattr(penstock, "ENOUGH", 10)
    assert run(jobs, 2, "penstock", information="none").finish[-2:].tolist() == [203_650, 200_150]
