"""A router over engines that generate as profiled, on virtual time: what the tests of generating requests share."""

import asyncio

from placement.problem import Slo
from placement.tables import Catalogue
from router import NotServed, Request, Router, RouterSettings
from tests.placement.test_generation import COST, chat, requests
from tests.router.fakes import EngineGroup, Lost, assert_empty, live


class Scene:
    """A router over engines, and what became of each request: reason, and when its first and last token came."""

    def __init__(self, groups=1, slo=None, capacity=100_000, pace=1.0, use=None, cost=COST, **settings):
        self.loop = asyncio.get_running_loop()
        slo = slo or Slo(ttft=1.0, tpot=0.1)
        problem, plan = chat(requests((0.0, 1, 1)), cost, slo=slo, groups=groups, capacity=capacity)
        catalogue = Catalogue(problem)
        self.groups = [EngineGroup(f"g{g}", spec, catalogue, pace=pace) for g, spec in enumerate(plan.groups)]
        self.router = Router(problem, (Lost,), RouterSettings(**settings), now=self.loop.time)
        self.router.apply([live(one) for one in self.groups[:use]])
        self.fates, self.tasks = {}, {}

    def submit(self, name, tokens=100, output=10, **request):
        wanted = Request(id=name, model="chat", tokens=tokens, max_tokens=output, **request)
        try:
            ticket = self.router.submit(wanted, lambda group: group.generate(name, tokens, output))
        except NotServed as error:
            self.fates[name] = (error.reason, None, None)
            return error
        self.tasks[name] = asyncio.create_task(self._consume(name, ticket, output))
        return ticket

    async def _consume(self, name, ticket, output):
        first = None
        try:
            tokens = []
            async for token in ticket:
                first = self.loop.time() if first is None else first
                tokens.append(token)
            assert tokens == list(range(output))
            self.fates[name] = ("served", first, self.loop.time())
        except NotServed as error:
            self.fates[name] = (error.reason, first, self.loop.time())

    async def at(self, when):
        await self.loop.sleep_until(when)

    async def end(self):
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        assert all(one.open == 0 for one in self.groups)
        assert_empty(self.router)
        return self.fates

    @property
    def counts(self):
        return self.router.statistics.of("chat", "standard")

    def reasons(self, *names):
        return [self.fates[name][0] for name in names]


def prefill_s(prompt, decoding=0, cached=0):
    return COST.seconds(prompt, decoding, 0, cached)
