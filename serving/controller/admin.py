"""The controller's side of /admin: plans in, explanations out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from placement.files import VERSION, convert
from placement.plan import Plan
from serving.controller import views
from serving.controller.controller import Controller
from serving.controller.expert_views import explain_experts
from serving.controller.experts import ExpertKeeper
from serving.controller.lender import Lender
from serving.controller.replan import Replanner
from serving.http.service import ExplainKind

NO_LOANS = {"mode": "off", "loans": [], "decisions": [], "why": "the configuration has no training to lend to"}


class AdminDesk:
    """What serving.http's Admin asks for."""

    def __init__(
        self, controller: Controller, replanner: Replanner, keeper: ExpertKeeper, lender: Lender | None = None
    ) -> None:
        self._controller, self._replanner, self._keeper, self._lender = controller, replanner, keeper, lender

    async def plan(self) -> Any:
        return {"version": VERSION} | msgspec.to_builtins(self._controller.in_force.plan)

    async def apply_plan(self, document: Mapping[str, Any]) -> Any:
        """Returns when the new plan serves."""
        plan = convert({key: value for key, value in document.items() if key != "version"}, Plan, "plan")
        change = await self._controller.apply(plan, "an operator's wish")
        return {"applied": True} | change.facts() | {"status": views.status(self._controller)}

    async def explain(self, kind: ExplainKind) -> Any:
        controller = self._controller
        match kind:
            case "plan":
                return views.explain_plan(controller) | {"suggested": self._replanner.told()}
            case "refusals":
                return views.explain_refusals(controller)
            case "moves":
                return views.explain_moves(controller)
            case "experts":
                return explain_experts(self._keeper)
            case "loans":
                return NO_LOANS if self._lender is None else self._lender.told()

    async def suggest(self) -> Any:
        """Returns when the planner has looked."""
        await self._replanner.look()
        looked = self._replanner.looked
        return {"suggested": self._replanner.told(), "why": None if looked is None else looked.why}

    async def status(self) -> Any:
        told = {"suggested": self._replanner.told() is not None, "experts": explain_experts(self._keeper)["experts"]}
        if self._lender is not None:
            told |= {"loans": [vars(loan) for loan in self._lender.loans.values()]}
        return views.status(self._controller) | told
