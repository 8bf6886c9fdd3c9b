"""Groups that do exactly what their profiles say, on whatever clock the loop has; and ones that die or dawdle."""

import asyncio
from dataclasses import dataclass, field

from placement.clocks import NOBODY
from router import LiveGroup
from router.virtual_time import run_virtually


class Lost(RuntimeError):  # noqa: N818  (it says what happened)
    """The group is gone."""


class ObedientGroup:
    """One-pass requests that come at one time for one model are a batch (unless it `batches` none); it walks through
    the stages as profiled, and answers travel for a while."""

    def __init__(self, name, spec, catalogue, tables=None, pace=1.0, travel_s=0.0, batches=True):
        self.takes_together = batches
        self.name, self.spec, self.pace, self.travel_s = name, spec, pace, travel_s
        self.catalogue = catalogue
        self.kind = catalogue.class_of(spec)
        self.wake = tables.wake[self.kind] if tables is not None else None
        self.free = [0.0] * spec.pp
        self.awake = NOBODY
        self.collecting = {}
        self.batches = []
        self.open = 0
        self.dead = None
        self.alive = set()

    def infer(self, request, model):
        """A `run` for this request."""
        return self._infer(request, self.catalogue.model_index[model])

    async def _infer(self, request, model):
        if self.dead:
            raise Lost(self.dead)
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        key = (loop.time(), model, None if self.takes_together else request)
        if key not in self.collecting:
            self.collecting[key] = []
            loop.call_soon(loop.call_soon, loop.call_soon, self._run, key)
        self.collecting[key].append((request, done))
        self.open += 1
        self.alive.add(done)
        try:
            yield await done
        finally:
            self.open -= 1
            self.alive.discard(done)
            done.cancel()

    def _run(self, key):
        now, model, _ = key
        members = self.collecting.pop(key)
        profile = self.catalogue.profile_of_model[model]
        sizes = self.catalogue.batch_size.tolist()
        size = next(i for i, size in enumerate(sizes) if size >= len(members))
        latency = self.catalogue.latency[self.kind, profile, size]
        start = max(now, self.free[0])
        if self.catalogue.problem.models[model].name in self.spec.parked and self.awake != model:
            self.awake = model
            self.free = [max(start, free) + self.wake[profile, s] for s, free in enumerate(self.free)]
        x = now
        for s in range(self.spec.pp):
            x = max(x, self.free[s]) + float(latency[s]) * self.pace
            self.free[s] = x
        self.batches.append((start, [request for request, _ in members]))
        loop = asyncio.get_running_loop()
        for request, done in members:
            loop.call_at(x + self.travel_s, self._answer, done, request)

    def _answer(self, done, request):
        if not done.done():
            done.set_result(request)

    def die(self, reason="killed"):
        self.dead = reason
        for done in list(self.alive):
            if not done.done():
                done.set_exception(Lost(reason))


@dataclass(eq=False)
class Sequence:
    name: str
    prompt: int
    output: int
    done: int = 0
    made: int = 0
    first: float = 0.0
    tokens: asyncio.Queue = field(default_factory=asyncio.Queue)


class EngineGroup:
    """Generates: one stage, one lane, steps as docs/generation.md has them, without preemption."""

    def __init__(self, name, spec, catalogue, model="chat", pace=1.0, step_tokens=512):
        self.name, self.spec, self.pace, self.step_tokens = name, spec, pace, step_tokens
        index = catalogue.model_index[model]
        self.cost = catalogue.entries[catalogue.class_of(spec)][catalogue.profile_of_model[index]].generation.stages[0]
        self.tpot = catalogue.problem.models[index].slo.tpot
        self.queue, self.decoding, self.took = [], [], []
        self.open, self.dead, self.stepping, self.last_end = 0, None, False, 0.0

    async def generate(self, name, prompt, output):
        """A `run` for a request: its tokens, by number."""
        if self.dead:
            raise Lost(self.dead)
        sequence = Sequence(name, prompt, output)
        self.took.append(name)
        self.queue.append(sequence)
        self.open += 1
        self._kick()
        try:
            for _ in range(output):
                token = await sequence.tokens.get()
                if isinstance(token, Exception):
                    raise token
                yield token
        finally:
            self.open -= 1
            for place in (self.queue, self.decoding):
                if sequence in place:
                    place.remove(sequence)

    def die(self, reason="killed"):
        self.dead = reason
        for sequence in self.queue + self.decoding:
            sequence.tokens.put_nowait(Lost(reason))

    def _kick(self):
        if not self.stepping and not self.dead:
            self.stepping = True
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, loop.call_soon, self._step)  # who comes at this time is in it

    def _step(self):
        loop = asyncio.get_running_loop()
        now, decoding = loop.time(), list(self.decoding)
        cached = sum(one.prompt + one.made - 1 for one in decoding)
        limit = float("inf")
        if decoding:
            due = min(one.first + self.tpot * one.made for one in decoding)
            limit = max(due, self.last_end + self.tpot)
        prefill = context = 0
        fresh = []
        for one in list(self.queue):
            most = min(one.prompt - one.done, self.step_tokens - len(decoding) - prefill)
            take = next(
                (
                    n
                    for n in range(most, 0, -1)
                    if now + self._seconds(prefill + n, len(decoding), context + n * one.done, cached) <= limit
                ),
                0,
            )
            if take <= 0:
                break
            prefill, context = prefill + take, context + take * one.done
            one.done += take
            if one.done < one.prompt:
                break
            fresh.append(one)
        if not decoding and not prefill:
            self.stepping = False
            return
        loop.call_at(now + self._seconds(prefill, len(decoding), context, cached), self._end_step, decoding, fresh)

    def _seconds(self, prefill, decoding, context, cached):
        return self.cost.seconds(prefill, decoding, context, cached) * self.pace

    def _end_step(self, decoding, fresh):
        self.last_end = now = asyncio.get_running_loop().time()
        for one in fresh:
            if one in self.queue:
                self.queue.remove(one)
                self.decoding.append(one)
                one.first = now
        for one in [*decoding, *fresh]:
            if one in self.decoding and not self.dead:
                one.tokens.put_nowait(one.made)
                one.made += 1
                if one.made == one.output:
                    self.decoding.remove(one)
        self.stepping = False
        if self.queue or self.decoding:
            self._kick()


def obedient_groups(problem, plan, catalogue, pace=1.0, travel_s=0.0, batches=True):
    tables = catalogue.tables(plan)
    return [
        ObedientGroup(f"g{index}", spec, catalogue, tables, pace, travel_s, batches)
        for index, spec in enumerate(plan.groups)
    ]


def live(group, ready=None, draining=False):
    names = group.spec.models + group.spec.parked if ready is None else ready
    return LiveGroup(name=group.name, spec=group.spec, handle=group, ready=names, draining=draining)


def tell(router, name, **changes):
    """What the controller tells when one group has changed; `gone=True`: it is there no more."""
    gone = changes.pop("gone", False)
    groups = []
    for one in router._members.values():
        said = {"ready": set(one.ready), "draining": one.draining, "back_at": one.back_at}
        said |= changes if one.name == name else {}
        if not (gone and one.name == name) and not one.lost:
            groups.append(LiveGroup(name=one.name, spec=one.spec, handle=one.handle, **said))
    router.apply(groups)


async def collect(ticket):
    return [item async for item in ticket]


def scene(test):
    """Run the test on virtual time."""

    def run():
        run_virtually(test())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def assert_empty(router):
    """Nothing of any request is left, in any count."""
    hall, pool = router._hall, router._hall.pool
    assert router.waiting == router.running == hall.waiting_tokens == 0
    assert not hall.tickets
    assert not any(hall.fair.by_rank)
    assert hall.fair.work_s == 0
    assert all(not tenant.waiting and tenant.work_s == 0 for tenant in hall.fair.tenants.values())
    assert not router._one_pass.aside
    assert pool.queued == 0
    assert not router._generating._by_slot
    mirror, world = pool.mirror, pool.mirror.world
    counts = (world.used, world.running, world.lanes.decoding, world.lanes.cached, mirror.pending, mirror.handed)
    assert not any(column.any() for column in (*counts, world.lines.waiting, world.lines.tokens))
    assert (world.lines.head == NOBODY).all()
    assert (world.lines.tail == NOBODY).all()
    assert world.engines.tpot.tolist() == pool.own_tpot
    assert not any(member.batches or member.running for member in router._members.values())
    for counts in router.statistics.classes.values():
        assert counts.waiting == counts.running == counts.tokens_queued == 0
        assert counts.arrivals == counts.served + sum(counts.not_served.values())
