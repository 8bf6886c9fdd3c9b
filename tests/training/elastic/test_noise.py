"""The noise scale that a job's own gradients tell, against what all sequences of its text tell."""

from pathlib import Path

import msgspec
import pytest
import torch

from serving.parallel import Alone
from tests.training.elastic.worlds import make_model, spec_of
from training.elastic.exchange import sum_parts
from training.elastic.history import History
from training.elastic.learner import MEASURES, Learner
from training.elastic.noise import measured_noise
from training.elastic.tokens import prepare_tokens


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Sixty steps of a model that hardly learns, so that its noise stays the same."""
    world = make_model(tmp_path_factory.mktemp("world"))
    spec = spec_of(world, batch=8, learning_rate=1e-12)
    torch.set_num_threads(1)
    learner = Learner(spec, prepare_tokens(Path(spec.data), Path(spec.model), world))
    learner.begin()
    history = History(world)
    while learner.step < 60:
        loss = learner.take(sum_parts(Alone(), learner.gradients(range(spec.parts)), spec.parts, learner.size))
        history.note_step(learner.step, loss, learner.squared, 1, 1)
    history.close()
    return world, spec, learner


def test_it_is_that_of_the_gradients_of_all_sequences(job):
    world, spec, learner = job
    count = (len(learner._tokens) - 1) // spec.context
    gradients = torch.stack([learner._part([window])[:-MEASURES] for window in range(count)])
    mean = gradients.mean(dim=0)
    exact = float(((gradients - mean) ** 2).sum(dim=1).mean() / (mean**2).sum())
    assert measured_noise(world, spec) == pytest.approx(exact, rel=0.2)


def test_nothing_is_known_of_one_micro_batch_or_of_no_steps(job, tmp_path):
    world, spec, _ = job
    assert measured_noise(world, msgspec.structs.replace(spec, micro_batch=8)) is None
    assert measured_noise(tmp_path, spec) is None
