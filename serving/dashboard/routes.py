"""The dashboard's routes: the page at /, its files, and what they ask for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from router.statistics import Statistics
from serving.dashboard.files import PLOTLY, PageFile, page_files
from serving.dashboard.recorder import Recorder
from serving.dashboard.source import Source
from serving.dashboard.viewers import Viewers
from serving.http.answers import encode
from serving.http.call import Call
from serving.http.errors import NotFound
from serving.http.meters import Meters
from serving.http.routes import Route

Explain = Callable[[Call], Any]
"""Answers with an explanation; the path's {kind} says of what."""


@dataclass
class Dashboard:
    """Made before the endpoint, which gives it its meters and gets its routes."""

    source: Source
    statistics: Statistics
    recorder: Recorder = field(init=False)
    viewers: Viewers = field(init=False)

    def routes(self, meters: Meters, explain: Explain) -> list[Route]:
        self.recorder = Recorder(self.source, self.statistics, meters)
        self.viewers = Viewers(self.recorder, self.source)

        def get(path: str, handle: Any, summary: str, **more: Any) -> Route:
            return Route(method="GET", path=path, handle=handle, summary=summary, tag="dashboard", **more)

        return [
            get("/", PageFile("index.html"), "The dashboard", access="open", media="text/html"),
            *(get(f"/dashboard/{name}", PageFile(name), name, access="open") for name in [*page_files(), PLOTLY]),
            get("/dashboard/snapshot", self.viewers.snapshot, "All it shows, once", access="look"),
            get("/dashboard/stream", self.viewers.stream, "All it shows, as it changes", access="look", streams=True),
            get("/dashboard/jobs/{job}", self._job, "A training job's curves", access="look"),
            get("/dashboard/experts", self._experts, "How often experts are chosen", access="look"),
            get("/dashboard/explain/{kind}", explain, "Why: plan, refusals, loans, moves, experts", access="look"),
        ]

    async def _job(self, call: Call) -> None:
        name = call.scope["path_params"]["job"]
        found = await self.source.job(name)
        if found is None:
            raise NotFound(f"there is no job {name[:80]!r}", param="job", code="no_such_job")
        await call.answer(encode(found))

    async def _experts(self, call: Call) -> None:
        await call.answer(encode({"experts": self.source.experts()}))
