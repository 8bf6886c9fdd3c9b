"""Lends devices of serving groups to training and takes them back: does what the loan officer decides.

A loan: the group takes no more requests, those it has end, its models go to sleep in host memory, its devices are open
to the queue. A recall: the queue gives them up; the router counts on the group from when it is expected back, and what
it hands over before waits at the group's gate until its models are awake.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Protocol

import msgspec

from placement.capacity import Rung, UsualRequest, find_rungs, rungs_of, usual_requests
from placement.errors import InputError
from placement.plan import Group, Plan, group_kind, group_span
from placement.problem import Problem
from serving.config import LoansConfig
from serving.controller.controller import Controller
from serving.controller.ledger import IDLE, Owner
from serving.controller.runner import GroupRunner
from serving.controller.steady import steadily
from training.lending import Held, LoanOfficer, Terms, Verdict, Victim, order_victims

LOOK_S = 0.05
DRAIN_S = 30.0
"""What the requests of a group that is to be lent get to end; a loan that cannot begin by then is given up."""
PATIENCE_S = 5.0
"""A device that is not given back by then is counted on no longer."""
REST_S = 30.0
"""So long a group with which a loan has failed is left alone, and devices stay lent that nobody wants any more."""
AFTERMATH_S = 1.0
"""Requests that end late so soon after a return were late for the loan."""
LEAST_CALM_S, MOST_CALM_S = 0.2, 3.0
WINDOWS_S = (1.0, 4.0)
"""Over which demand must be low for more to be lent."""
PATIENCE, LONGEST_S = 0.2, 1.0
"""Of the tightest goal: when work would wait so long, devices are called back."""
REMEMBERED = 200
_WAIT_S = 0.004


class Borrower(Protocol):
    """The training queue."""

    def open_to_jobs(self, devices: Collection[str]) -> None:
        """Jobs may have these."""
        ...

    def recall(self, devices: Collection[str]) -> None:
        """They may not any more: whoever has them gives them up at once. The ledger tells when that is done."""
        ...

    def held(self) -> Sequence[Held]:
        """What jobs have now."""
        ...

    def wants(self) -> bool:
        """Whether there is a job that could train."""
        ...


@dataclass
class Loan:
    group: str
    devices: tuple[str, ...]
    at: float = field(default_factory=time.time)
    """Unix seconds."""
    state: Literal["draining", "lent", "returning"] = "draining"


class Lender:
    def __init__(self, controller: Controller, borrower: Borrower, settings: LoansConfig) -> None:
        self._controller, self._borrower, self._settings = controller, borrower, settings
        self.loans: dict[str, Loan] = {}
        """By group."""
        self.decisions: deque[dict[str, Any]] = deque(maxlen=REMEMBERED)
        self.lent_s = 0.0
        """Device-seconds, all in all."""
        self.recalls, self.last_recall_s = 0, 0.0
        self.verdict = Verdict(0, "nothing has been looked at yet")
        self._usual: dict[str, UsualRequest] = usual_requests(controller.problem)
        self._plan: Plan | None = None
        self._officer: LoanOfficer | None = None
        self._depth, self._is_surprise = 0, False
        self._wanted: frozenset[str] = frozenset()
        """Groups to be lent on this rung."""
        self._alike: dict[str, str] = {}
        """Of each group the first that is like it: either can be lent in the other's place."""
        self._fed = self._refused = 0.0
        self._missed = self._missed_before = 0
        """Requests that were not in time, ever: at the last look and at that before."""
        self._looked = self._sought = time.monotonic()
        """When was looked last, and when a job was last there."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._rests: dict[str, float] = {}
        """Until when nothing is lent of a group with which it has failed (time.monotonic)."""
        self._changing = asyncio.Lock()
        controller.before_change = self._settle

    @property
    def mode(self) -> str:
        return self._settings.mode

    async def run(self) -> None:
        """For ever, or not at all."""
        if self._settings.mode == "off":
            return
        try:
            await steadily(LOOK_S, self._look_unless_changing, self._controller.journal, "loan")
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def told(self) -> dict[str, Any]:
        """For `penstock explain loans`: what is lent, what was weighed last, what was decided before."""
        officer = self._officer
        return {
            "mode": self._settings.mode,
            "loans": [vars(loan) for loan in self.loans.values()],
            "now": _verdict(self.verdict),
            "comes_back_within_s": None if officer is None else round(officer.horizon_s, 3),
            "missed_by_a_surprise": None if officer is None else round(officer.missed or 0.0, 2),
            "lent_device_s": round(self.lent_s, 1),
            "comes_back_first": [asdict(victim) for victim in self._victims(frozenset())],
            "decisions": list(self.decisions),
        }

    # Deciding

    async def _look_unless_changing(self) -> None:
        async with self._changing:
            if not self._controller.is_changing:
                await self._look()

    async def _look(self) -> None:
        controller, now = self._controller, time.monotonic()
        if controller.in_force.plan is not self._plan:
            await self._take_up(controller.in_force.plan)
        lent = sum(len(loan.devices) for loan in self.loans.values() if loan.state == "lent")
        self.lent_s, self._looked = self.lent_s + lent * (now - self._looked), now
        officer = self._officer
        if officer is None:
            return
        self._feed(officer)
        self._missed_before, self._missed = self._missed, controller.router.statistics.missed
        self.verdict = verdict = self._allowed(officer.decide(now, self._depth, self._trouble()), now)
        if verdict.depth != self._depth:
            self._note(verdict)
            self._choose([list(controller.runners)[index] for index in officer.rungs[self._depth].drained])
        if self._settings.mode == "apply":
            self._follow(self._wanted)

    async def _take_up(self, plan: Plan) -> None:
        self._plan, self._depth, self._officer, self._wanted = plan, 0, None, frozenset()
        self.verdict = Verdict(0, "no group can be drained with every model still covered")
        rungs: tuple[Rung, ...] = rungs_of(plan)
        if plan.ladder and not rungs:
            rungs = await asyncio.to_thread(find_rungs, self._controller.problem, plan)
        if len(rungs) > 1:
            minimum_s = float(self._settings.minimum)
            calm_s = min(max(minimum_s / 10, LEAST_CALM_S), MOST_CALM_S)
            self._officer = LoanOfficer(
                rungs,
                Terms(
                    risk=1 - float(self._settings.target),
                    minimum_s=minimum_s,
                    calm_s=calm_s,
                    windows_s=WINDOWS_S,
                    patience_s=PATIENCE
                    * min(LONGEST_S, *(one.slo.first_token for one in self._controller.problem.models)),
                ),
            )

    def _feed(self, officer: LoanOfficer) -> None:
        """What has come since the last look."""
        router = self._controller.router
        fresh = []
        for arrival in reversed(router.statistics.arrived):
            if arrival[0] <= self._fed:
                break
            fresh.append(arrival)
        for at, model, tokens, max_tokens in reversed(fresh):
            output = router.usual_output(model) or max_tokens
            officer.saw(at, model, self._usual[model].work(tokens + min(max_tokens, output)))
            self._fed = at

    def _trouble(self) -> str:
        """Somebody was turned away who could have been served at another time."""
        trouble = ""
        for refusal in reversed(self._controller.router.statistics.refusals):
            if refusal.at <= self._refused:
                break
            if refusal.retry_after_s is not None and refusal.reason in ("refused", "expired", "queue-full"):
                trouble = f"a request for {refusal.model} was turned away ({refusal.reason})"
        self._refused = time.monotonic()
        return trouble

    def _allowed(self, verdict: Verdict, now: float) -> Verdict:
        """A rung holds what it holds where all groups serve that it does not drain; and somebody must want to train."""
        runners = self._controller.runners.items()
        down = [
            name
            for name, runner in runners
            if runner.state != "serving" and name not in self.loans and name not in self._wanted
        ]
        if down:
            return replace(verdict, depth=0, why=f"{', '.join(down)}: not there to serve the rest", is_surprise=False)
        if self._borrower.wants():
            self._sought = now
        elif now - self._sought > REST_S:
            return replace(verdict, depth=0, why="no job is there to train", is_surprise=False)
        elif verdict.depth > self._depth:
            return replace(verdict, depth=self._depth, why="no job is there to train")
        return verdict

    def _note(self, verdict: Verdict) -> None:
        decision = {"at": time.time(), "from": self._depth, "to": verdict.depth} | _verdict(verdict)
        self.decisions.append(decision)
        self._controller.journal.note("loan", f"rung {verdict.depth}", "decided", why=verdict.why)
        self._depth, self._is_surprise = verdict.depth, verdict.is_surprise

    def _choose(self, rung: Sequence[str]) -> None:
        """The groups of a rung, or as many that are like them: lent ones stay lent where that is all the same to
        traffic, and of those that come back the ones that training misses least do."""
        specs = {name: runner.spec for name, runner in self._controller.runners.items()}
        self._alike = _alike(specs, self._controller.problem)
        victims = self._victims(frozenset(rung))
        stay = self._wanted - {victim.group for victim in victims}
        room = Counter(self._alike[name] for name in rung) - Counter(self._alike[name] for name in stay)
        more = set()
        for name in rung:
            if name not in stay and room[self._alike[name]] > 0:
                room[self._alike[name]] -= 1
                more.add(name)
        self._wanted = stay | more
        if victims and stay:
            self.decisions[-1]["victims"] = [asdict(victim) for victim in victims]

    def _victims(self, rung: Collection[str]) -> list[Victim]:
        """Those that come back when only this rung is to be lent."""
        wanted = [name for name in self._controller.runners if name in self._wanted]
        too_many = Counter(self._alike[name] for name in wanted) - Counter(self._alike[name] for name in rung)
        if not too_many:
            return []
        groups = {name: self._controller.runners[name].spec.devices for name in reversed(wanted)}
        return order_victims(groups, self._borrower.held(), too_many, self._alike)

    def _follow(self, wanted: Collection[str]) -> None:
        """Bring loans to what is wanted, one thing at a time with each group; what is under way goes to its end, but
        for a loan that has not begun."""
        for name, runner in self._controller.runners.items():
            loan, task = self.loans.get(name), self._tasks.get(name)
            if task is not None and not task.done():
                if name not in wanted and loan is not None and loan.state == "draining":
                    task.cancel()
                continue
            if task is not None and not task.cancelled() and (error := task.exception()) is not None:
                self._controller.journal.note("loan", name, "failed", reason=f"{type(error).__name__}: {error}")
                self._rests[name] = time.monotonic() + REST_S
            if name in wanted and loan is None:
                if time.monotonic() < self._rests.get(name, 0.0):
                    continue
                self._tasks[name] = asyncio.create_task(self._lend(runner), name=f"loan of {name}")
            elif loan is not None and (name not in wanted or loan.state != "lent"):
                self._tasks[name] = asyncio.create_task(self._recall(runner), name=f"return of {name}")
            else:
                self._tasks.pop(name, None)

    # Doing

    async def _lend(self, runner: GroupRunner) -> None:
        controller = self._controller
        loan = self.loans[runner.name] = Loan(runner.name, runner.spec.devices)
        runner.is_lent = True
        controller.publish()
        if not await controller.emptied(runner, DRAIN_S):
            await self._leave(runner, loan, f"requests did not end in {DRAIN_S:g} s")
            return
        try:
            await runner.put_to_sleep()
        except InputError as error:
            await self._leave(runner, loan, str(error))
            return
        controller.ledger.move(loan.devices, Owner("group", runner.name), IDLE)
        loan.state, loan.at = "lent", time.time()
        controller.journal.note("loan", runner.name, "lent", devices=list(loan.devices))
        self._borrower.open_to_jobs(loan.devices)

    async def _leave(self, runner: GroupRunner, loan: Loan, reason: str) -> None:
        """A loan that cannot begin: not tried again at once."""
        self._controller.journal.note("loan", runner.name, "given up", reason=reason)
        self._rests[runner.name] = time.monotonic() + REST_S
        await self._wake(runner, loan)

    async def _recall(self, runner: GroupRunner) -> None:
        """Its devices serve again, whoever has them now."""
        decision, is_surprise = self.decisions[-1], self._is_surprise
        controller, officer, loan = self._controller, self._officer, self.loans[runner.name]
        began, missed = time.monotonic(), self._missed_before
        was_lent = loan.state == "lent"
        loan.state = "returning"
        if was_lent:
            self._borrower.recall(loan.devices)
            runner.expect_back(began + (0.0 if officer is None else officer.horizon_s))
            controller.publish()
            await self._given_back(runner, loan)
            controller.ledger.move(loan.devices, IDLE, Owner("group", runner.name))
        await self._wake(runner, loan)
        took_s = self.last_recall_s = time.monotonic() - began
        self.recalls += was_lent
        controller.journal.note("loan", runner.name, "returned", took_s=round(took_s, 3))
        decision.setdefault("returned_s", {})[runner.name] = round(took_s, 3)
        if not was_lent or officer is None:
            return
        if is_surprise:
            served = await _first_answer(runner, AFTERMATH_S)
            if served is not None:
                decision.setdefault("served_s", {})[runner.name] = round(served - began, 3)
            decision["missed"] = controller.router.statistics.missed - missed
        officer.returned(took_s, decision.get("missed"))

    async def _given_back(self, runner: GroupRunner, loan: Loan) -> None:
        """Jobs have left. One that takes too long is waited for all the same, but nobody counts on the group then."""
        late = time.monotonic() + PATIENCE_S
        while not self._controller.ledger.can_move(loan.devices, IDLE):
            if not runner.is_lent and time.monotonic() > late:
                runner.is_lent = True
                self._controller.publish()
                self._controller.journal.note("loan", runner.name, "late", reason=f"not back after {PATIENCE_S:g} s")
            await asyncio.sleep(_WAIT_S)

    async def _wake(self, runner: GroupRunner, loan: Loan) -> None:
        await runner.wake_up()
        runner.is_lent = False
        self.loans.pop(loan.group, None)
        self._controller.publish()

    async def _settle(self, needed: Collection[str]) -> None:
        """All groups have their devices again, and jobs have left the others that are `needed`; nothing is lent until
        the change is over."""
        async with self._changing:
            if self._depth:
                self._note(Verdict(0, "groups change"))
                self._choose(())
            while self.loans:
                self._follow(())
                await asyncio.sleep(_WAIT_S)
            ledger = self._controller.ledger
            of_jobs = [device for device in needed if ledger.owners[device].kind != "group"]
            self._borrower.recall(of_jobs)
            while not ledger.can_move(of_jobs, IDLE):
                await asyncio.sleep(_WAIT_S)


def _alike(groups: Mapping[str, Group], problem: Problem) -> dict[str, str]:
    """Of each group the first of the same models in the same shape on the same kind of devices."""
    first: dict[bytes, str] = {}
    found = {}
    for name, group in groups.items():
        form = msgspec.to_builtins(group) | {"models": sorted(group.models), "parked": sorted(group.parked)}
        form |= {"devices": [group_kind(group, problem), group_span(group, problem)]}
        found[name] = first.setdefault(msgspec.json.encode(form, order="sorted"), name)
    return found


async def _first_answer(runner: GroupRunner, wait_s: float) -> float | None:
    """When a group first answers from now on (time.monotonic), looked for all the time."""
    began, found = time.monotonic(), None
    while time.monotonic() < began + wait_s:
        heard = {} if runner.group is None else runner.group.heard
        found = found or min((at for at in heard.values() if at > began), default=None)
        await asyncio.sleep(_WAIT_S)
    return found


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "why": verdict.why,
        "rungs": [
            {
                "drained": list(option.drained),
                "load": round(option.load, 3),
                "safe_for_s": round(option.safe_for_s, 1) if option.safe_for_s < 1e9 else None,
                "open": option.is_open,
                "why": option.why,
            }
            for option in verdict.options
        ],
    }
