"""The queue as commands see it: in a store, or behind a server. Both answer in the same plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol
from urllib.parse import quote, urlencode

import msgspec

from placement.cli.admin import ask_admin
from training.queue.logs import read_log
from training.queue.states import STATES, State
from training.queue.store import Store
from training.queue.submission import Submission, encode_submission

Plain = dict[str, Any]


class Client(Protocol):
    """Jobs as `Record.view` shows them."""

    def submit(self, jobs: Sequence[Submission]) -> list[Plain]:
        """All or none."""
        ...

    def jobs(self, state: State | None, user: str | None, limit: int) -> list[Plain]: ...

    def show(self, job: str) -> Plain:
        """With its events."""
        ...

    def cancel(self, job: str) -> Plain: ...

    def logs(self, job: str, offset: int) -> Plain:
        """{data, offset, next_offset, state}: what it has written from `offset` on."""
        ...


class StoreClient:
    def __init__(self, store: Store, who: str) -> None:
        self._store, self._who = store, who

    def submit(self, jobs: Sequence[Submission]) -> list[Plain]:
        return [record.view() for record in self._store.submit(jobs, self._who)]

    def jobs(self, state: State | None, user: str | None, limit: int) -> list[Plain]:
        return [record.view() for record in self._store.jobs(STATES if state is None else (state,), user, limit)]

    def show(self, job: str) -> Plain:
        return shown(self._store, job)

    def cancel(self, job: str) -> Plain:
        return self._store.cancel(job, self._who).view()

    def logs(self, job: str, offset: int) -> Plain:
        return logs_shown(self._store, job, offset)


class ServerClient:
    def __init__(self, url: str) -> None:
        self._url = url

    def submit(self, jobs: Sequence[Submission]) -> list[Plain]:
        words = [msgspec.json.decode(encode_submission(job)) for job in jobs]
        for one in words:
            one.pop("version")
        answer = ask_admin(self._url, "/v1/jobs", msgspec.json.encode({"jobs": words}), "POST")
        found: list[Plain] = answer["data"]
        return found

    def jobs(self, state: State | None, user: str | None, limit: int) -> list[Plain]:
        asked = {"state": state, "user": user, "limit": limit}
        query = urlencode({name: value for name, value in asked.items() if value is not None})
        found: list[Plain] = ask_admin(self._url, f"/v1/jobs?{query}")["data"]
        return found

    def show(self, job: str) -> Plain:
        found: Plain = ask_admin(self._url, f"/v1/jobs/{quote(job, safe='')}")
        return found

    def cancel(self, job: str) -> Plain:
        found: Plain = ask_admin(self._url, f"/v1/jobs/{quote(job, safe='')}", method="DELETE")
        return found

    def logs(self, job: str, offset: int) -> Plain:
        found: Plain = ask_admin(self._url, f"/v1/jobs/{quote(job, safe='')}/logs?offset={offset}")
        return found


def shown(store: Store, job: str) -> Plain:
    """A job with its events."""
    return store.get(job).view() | {"events": msgspec.to_builtins(store.events(job))}


def logs_shown(store: Store, job: str, offset: int) -> Plain:
    # The state is read first: once it says ended, all of the log is there.
    record = store.get(job)
    part = read_log(record.folder, offset)
    state = record.view()["state"]
    return {
        "object": "job.log",
        "id": job,
        "data": part.text,
        "offset": part.start,
        "next_offset": part.end,
        "state": state,
    }
