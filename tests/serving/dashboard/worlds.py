"""A source that says what it is told to, and a recorder with a clock of its own."""

from router.statistics import Statistics
from serving.dashboard.recorder import Recorder
from serving.dashboard.source import Holder
from serving.http.meters import Meters


class Told:
    """What serving.dashboard's Source asks for."""

    def __init__(self, models=("chat",), devices=("n/0", "n/1")):
        self.held = {name: Holder("group", f"g{place}") for place, name in enumerate(devices)}
        self.happened = []
        self.models = models

    def holders(self):
        return self.held

    def marks(self, after):
        return [mark for mark in self.happened if mark.at > after]

    def now(self, recent):
        devices = [{"name": name, "kind": one.kind, "owner": one.name} for name, one in self.held.items()]
        return {"devices": devices, "models": [{"name": name} for name in self.models], "troubles": []}

    async def jobs(self):
        return [{"id": "lesson"}]

    async def job(self, name):
        return {"id": name} if name == "lesson" else None

    def experts(self):
        return []


class World:
    """`now` moves both clocks."""

    def __init__(self, models=("chat",)):
        self.now = 1000.0
        self.source, self.statistics, self.meters = Told(models), Statistics(), Meters(models)
        self.recorder = Recorder(self.source, self.statistics, self.meters, lambda: self.now, lambda: self.now + 1e9)

    def arrive(self, at, model="chat", met=True):
        one = self.statistics.of(model, "standard")
        one.arrivals += 1
        one.served += 1
        one.met += met
        one.window.add(at, met)
        self.statistics.arrived.append((at, model, 3, 8))

    def refuse(self, at, model="chat", reason="refused"):
        one = self.statistics.of(model, "standard")
        one.arrivals += 1
        one.end_without(reason, at)
        self.statistics.arrived.append((at, model, 3, 8))

    def pass_on(self, seconds):
        """Second by second; what was new in each."""
        news = []
        for _ in range(seconds):
            self.now += 1.0
            news.append(self.recorder.tick())
        return news
