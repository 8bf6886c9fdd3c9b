"""Front ends are started again, whatever ends them or keeps them from starting."""

import asyncio
from types import SimpleNamespace

import pytest

from placement.errors import InputError
from serving.controller import front_keeper
from serving.controller.front_keeper import FrontKeeper
from serving.controller.front_process import FrontDocument
from serving.worker.launcher import Exit


class Launcher:
    """Of processes that live so long each; one whose life is None cannot be started."""

    def __init__(self, *lives_s):
        self._lives_s = list(lives_s)

    async def start(self, spec):
        if not self._lives_s:
            raise asyncio.CancelledError
        life_s = self._lives_s.pop(0)
        if life_s is None:
            raise InputError(f"{spec.name}: cannot start python: cannot allocate memory")

        async def wait():
            await asyncio.sleep(life_s)
            return Exit(name=spec.name, code=1, signal=None, lines=("it died",))

        return SimpleNamespace(wait=wait)


@pytest.fixture
def deaths(monkeypatch):
    """(reason, pause) of each death of a front end with these lives."""
    monkeypatch.setattr(front_keeper, "BACK_OFF_S", (0.0, 0.001, 0.002))
    monkeypatch.setattr(front_keeper, "STEADY_S", 0.1)

    def of(*lives_s):
        noted = []
        config = SimpleNamespace(address=("127.0.0.1", 0))
        journal = SimpleNamespace(note=lambda *what, reason, again_in_s: noted.append((reason, again_in_s)))
        keeper = FrontKeeper(config, None, journal, None)
        keeper._launcher = Launcher(*lives_s)
        document = FrontDocument(config={}, host="", port=0, desk="")
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(keeper._keep(0, document))
        keeper._held.close()
        keeper._scratch.remove()
        return noted

    return of


def test_one_that_cannot_be_started_is_tried_again(deaths):
    first, second = deaths(None, 0.0)
    assert "cannot allocate memory" in first[0]
    assert "it died" in second[0]


def test_deaths_of_long_ago_do_not_count(deaths):
    assert [pause_s for _, pause_s in deaths(0.0, 0.0, 0.2, 0.0)] == [0.0, 0.001, 0.0, 0.001]
