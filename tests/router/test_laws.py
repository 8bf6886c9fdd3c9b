"""Whatever happens in whatever order: each request ends once, every count returns to zero, and no group that is lost,
draining or not ready for a model is given a request for it."""

import asyncio
from random import Random

from hypothesis import event, given, settings
from hypothesis import strategies as st

from router import PRIORITIES, LiveGroup, NotServed, Request, Router, RouterSettings
from router.refusals import MOST_RETRY_S
from router.virtual_time import run_virtually
from tests.placement.test_generation_reference import GenerationWorld
from tests.router.fakes import Lost, assert_empty, tell


class Whimsical:
    """A group that answers when it likes, and knows whether it may be asked."""

    def __init__(self, chaos, name, spec):
        self.chaos, self.name, self.spec = chaos, name, spec
        self.ready, self.draining, self.dead, self.is_known_dead = set(), False, False, False
        self.changed_at = -1.0
        self.open = []

    def set(self, **changes):
        for name, value in changes.items():
            setattr(self, name, value)
        self.changed_at = self.chaos.loop.time()

    async def run(self, request):
        random, loop = self.chaos.random, self.chaos.loop
        if self.changed_at < loop.time():  # else it may have been started just before
            assert not self.is_known_dead
            assert not self.draining
            assert request.model in self.ready
        if self.dead:
            self.set(is_known_dead=True)
            raise Lost("gone")
        gone = loop.create_future()
        self.open.append(gone)
        try:
            for token in range(random.choice((1, 1, 2, 5, 30)) if request.max_tokens else 1):
                await asyncio.wait([gone], timeout=random.expovariate(20))
                if self.dead:
                    self.set(is_known_dead=True)
                    raise Lost("gone")
                if random.random() < 0.02:
                    raise ValueError("an error of the request")
                yield token
        finally:
            self.open.remove(gone)
            gone.cancel()


class Chaos:
    """A router in a random world, and random things that happen to it."""

    def __init__(self, seed):
        self.random = random = Random(seed)
        self.loop = asyncio.get_running_loop()
        self.world = GenerationWorld(seed, 1)
        bounds = RouterSettings(
            queue_requests=random.choice((3, 20, 4096)),
            queue_tokens=random.choice((30, 4_000_000)),
            running_requests=random.choice((4, 8192)),
            step_tokens=self.world.step_tokens,
        )
        self.router = Router(self.world.problem, (Lost,), bounds, now=self.loop.time)
        self.names = [model.name for model in self.world.problem.models]
        self.generates = [model.generates for model in self.world.problem.models]
        self.groups, self.made = [], 0
        self.tasks, self.retries, self.ends, self.submitted = [], [], {}, 0
        self.plan()

    def plan(self):
        """Some groups stay, some are new (a name may come back with another handle), some go."""
        now = []
        for index, spec in enumerate(self.world.plan.groups):
            if self.random.random() < 0.2:
                continue
            known = next((one for one in self.groups if one.name == f"g{index}"), None)
            if known is None or known.dead or self.random.random() < 0.2:
                known = Whimsical(self, f"g{index}", spec)
            held = spec.models + spec.parked
            ready = {name for name in held if self.random.random() < 0.9}
            known.set(ready=ready, draining=self.random.random() < 0.1)
            now.append(known)
        for one in self.groups:
            if one not in now:
                one.set(draining=True)
        self.groups = now
        self.router.apply(
            LiveGroup(name=one.name, spec=one.spec, handle=one, ready=one.ready, draining=one.draining) for one in now
        )

    def submit(self):
        random, number = self.random, self.submitted
        self.submitted += 1
        model = random.randrange(len(self.names))
        request = Request(
            id=str(number),
            model=self.names[model],
            tokens=random.choice((0, 1, 5, 20, 60)),
            inputs=1 if self.generates[model] else random.choice((1, 1, 1, 2, 5)),
            max_tokens=random.choice((1, 10)) if self.generates[model] else 0,
            answers=random.choice((1, 1, 3)) if self.generates[model] else 1,
            prompt=tuple(random.choice((1, 2)) for _ in range(40)) if random.random() < 0.3 else (),
            slo_s=random.choice((None, None, 0.01, 0.5, 30)),
            tpot_s=random.choice((None, None, 0.02, 1)),
            tenant=random.choice(("", "x", "y")),
            priority=random.choice(PRIORITIES),
        )
        try:
            ticket = self.router.submit(request, lambda group: group.run(request))
        except NotServed as error:
            self.end(number, error.reason)
            self.retries.append(error.retry_after_s)
            return
        self.tasks.append(asyncio.create_task(self.consume(number, ticket)))

    async def consume(self, number, ticket):
        enough = self.random.choice((1000, 1000, 1000, 1))
        reason = "served"
        try:
            async for token in ticket:
                if token + 1 >= enough:
                    await ticket.finish()
        except NotServed as error:
            reason = error.reason
        except ValueError:
            reason = "failed"
        except asyncio.CancelledError:
            reason = "cancelled" if ticket.error is None else ticket.error.reason  # it had ended before
            raise
        finally:
            self.end(number, reason)

    def end(self, number, reason):
        assert number not in self.ends
        self.ends[number] = reason

    def die(self):
        if self.groups:
            one = self.random.choice(self.groups)
            one.set(dead=True)
            for gone in one.open:
                if not gone.done():
                    gone.set_result(None)
            if self.random.random() < 0.5:
                one.set(is_known_dead=True)
                tell(self.router, one.name, gone=True)

    def drain(self):
        if self.groups:
            one = self.random.choice(self.groups)
            one.set(draining=not one.draining)
            tell(self.router, one.name, draining=one.draining)

    def load(self):
        if self.groups:
            one, name = self.random.choice(self.groups), self.random.choice(self.names)
            ready = self.random.random() < 0.7
            one.set(ready=one.ready | {name} if ready else one.ready - {name})
            tell(self.router, one.name, ready=one.ready)

    def cancel(self):
        begun = [task for task in self.tasks if not task.done()]
        if begun:
            self.random.choice(begun).cancel()

    async def run(self, events):
        happenings = [self.submit] * 20 + [self.cancel] * 3 + [self.die, self.drain, self.load, self.plan]
        for _ in range(events):
            self.random.choice(happenings)()
            if self.random.random() < 0.6:
                await asyncio.sleep(self.random.expovariate(30))
            else:
                await asyncio.sleep(0)
        errors = await asyncio.gather(*self.tasks, return_exceptions=True)
        assert all(error is None or isinstance(error, asyncio.CancelledError) for error in errors), errors
        assert sorted(self.ends) == list(range(self.submitted))
        assert all(retry_s is None or 0 < retry_s <= MOST_RETRY_S for retry_s in self.retries)
        assert_empty(self.router)
        counted = {}
        for counts in self.router.statistics.classes.values():
            for reason, number in {**counts.not_served, "served": counts.served}.items():
                counted[reason] = counted.get(reason, 0) + number
        ends = list(self.ends.values())
        assert counted == {reason: ends.count(reason) for reason in counted}
        assert sum(counted.values()) == self.submitted
        return set(ends)


async def chaos(seed, events):
    return await Chaos(seed).run(events)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 300) | st.just(300))
def test_no_request_is_lost_and_every_count_returns_to_zero(seed, events):
    for reason in run_virtually(chaos(seed, events)):
        event(reason)
