"""Compiles what planning and routing call, so that processes to come find it in the cache; run as a process itself."""

from __future__ import annotations

from placement.example import tiny_problem
from placement.planner import make_plan
from placement.search.effort import Effort
from router.warm_up import warm_up


def main() -> None:
    for generates in (False, True):
        make_plan(tiny_problem(generates), effort=Effort(steps=1))
    warm_up()


if __name__ == "__main__":
    main()
