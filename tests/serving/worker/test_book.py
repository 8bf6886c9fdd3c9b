"""A group's book: whose step is next."""

import numpy as np
import pytest

from serving.engine import PassEngine
from serving.engine.scheduler import Limits
from serving.engine.step import PassResult
from serving.worker.book import Book, Held
from serving.worker.messages import Infer


class Clock:
    def __init__(self):
        self.at = 0.0

    def __call__(self):
        self.at += 1.0
        return self.at


@pytest.fixture
def book():
    reports, clock = [], Clock()
    book = Book("g", 1, reports.append)
    for model in ("a", "b"):
        engine = PassEngine(model, 100, 16, 2, limits=Limits(64, 1), now=clock)
        book.expect(model)
        book.add(model, Held(engine, engine.begin))
    return book


def answered(book):
    """The models of all steps, in order."""
    order = []
    while (step := book.take()) is not None:
        order.append(step.model)
        book.complete(PassResult(step.number, step.model, np.zeros((1, 2), np.float32)))
    return "".join(order)


def test_one_pass_requests_run_in_the_order_they_came_whatever_their_model(book):
    for number, model in enumerate("aaabbab"):
        book.submit(Infer(str(number), model, [[1, 2, 3]]))
    assert answered(book) == "aaabbab"
    assert book.is_idle


def test_a_model_that_sleeps_lets_others_run(book):
    book.held("a").is_suspended = True
    for number, model in enumerate("aab"):
        book.submit(Infer(str(number), model, [[1, 2, 3]]))
    assert answered(book) == "b"


def test_a_stage_that_is_heard_after_its_model_has_gone_is_left(book):
    book.remove("a")
    book.count_busy("a", 0, 1.0)
    book.count_busy("b", 0, 1.0)
    assert book.held("b").busy_s == [1.0]


def test_more_inputs_than_one_answer_holds_are_refused():
    reports = []
    book = Book("g", 1, reports.append)
    engine = PassEngine("wide", 100, 16, width=2**20)
    book.expect("wide")
    book.add("wide", Held(engine, engine.begin))
    book.submit(Infer("fits", "wide", [[1]] * 2))
    assert not reports
    book.submit(Infer("large", "wide", [[1]] * 3))
    [refused] = reports[0].outputs
    assert (refused.code, refused.reason) == ("invalid", "input: 3 texts; of this model, one answer holds 2")
