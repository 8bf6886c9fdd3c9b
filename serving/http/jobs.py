"""/v1/jobs: the training queue over HTTP. Who may do what: the admin key everything; a tenant's key what is that
tenant's; without any keys, everybody everything but commands, which run code here and need the admin key always.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qs

import msgspec

from placement.errors import InputError
from serving.http.answers import encode
from serving.http.auth import Keys
from serving.http.call import Call
from serving.http.decode import decode
from serving.http.errors import BadRequest, Forbidden, HttpError, NotFound, Unauthorised, Unavailable, from_input
from serving.http.job_desk import JobAnswer, JobDesk, JobLogAnswer, JobsAnswer
from serving.http.routes import Route
from serving.http.service import Service
from training.queue import (
    STATES,
    Ended,
    JobExists,
    NoSuchJob,
    OverQuota,
    Record,
    StoreError,
    Submission,
    read_submission,
)
from training.queue.client import logs_shown, shown

T = TypeVar("T")
COMMAND = "command"
MOST_LISTED = 1000
MOST_SUBMITTED = 10_000


class Conflict(HttpError):  # noqa: N818  (they say what happened)
    status, type, code = 409, "invalid_request_error", "conflict"


class QuotaReached(HttpError):  # noqa: N818
    status, type, code = 429, "rate_limit_error", "quota"


def job_routes(service: Service) -> list[Route]:
    """None without a training queue."""
    if service.jobs is None:
        return []
    jobs = JobRoutes(service.jobs, service.keys)

    def route(method: Any, path: str, handle: Any, answer: Any, summary: str, **more: Any) -> Route:
        return Route(method=method, path=path, handle=handle, answer=answer, summary=summary, tag="jobs", **more)

    return [
        route("POST", "/v1/jobs", jobs.submit, JobsAnswer, "Queue training jobs", body=dict[str, Any]),
        route("GET", "/v1/jobs", jobs.list, JobsAnswer, "The jobs, in order of submission"),
        route("GET", "/v1/jobs/{job}", jobs.show, JobAnswer, "One job, and what happened to it"),
        route("DELETE", "/v1/jobs/{job}", jobs.cancel, JobAnswer, "Cancel a job", any_type=True),
        route("GET", "/v1/jobs/{job}/logs", jobs.logs, JobLogAnswer, "What a job has written"),
    ]


class JobRoutes:
    def __init__(self, desk: JobDesk, keys: Keys) -> None:
        self._desk, self._keys = desk, keys
        self._decoder = msgspec.json.Decoder(dict[str, Any])

    async def submit(self, call: Call) -> None:
        """One job, or {"jobs": [...]}: all or none."""
        body = decode(self._decoder, await call.body())
        words = body["jobs"] if set(body) == {"jobs"} else [body]
        if not isinstance(words, list) or not 1 <= len(words) <= MOST_SUBMITTED:
            raise BadRequest(f"jobs: expected a list of 1 to {MOST_SUBMITTED} jobs", param="jobs")

        def submit() -> bytes:
            jobs = [self._checked(call, _read(one)) for one in words]
            return _listed(self._desk.store.submit(jobs, self._who(call)))

        answer = await _asked(submit)
        self._desk.wake()
        await call.answer(answer)

    async def list(self, call: Call) -> None:
        query = _query(call)
        limit = _whole(query, "limit", MOST_LISTED, 1, MOST_LISTED)
        state = query.get("state")
        if state is not None and state not in STATES:
            raise BadRequest(f"state: expected one of {', '.join(STATES)}", param="state")
        states = [one for one in STATES if state in (None, one)]
        user = query.get("user")
        if not self._is_admin(call) and not self._keys.is_open:
            user = call.tenant

        def find() -> bytes:
            records = self._desk.store.jobs(states, user, limit)
            return _listed([record for record in records if self._may_see(call, record)])

        await call.answer(await _asked(find))

    async def show(self, call: Call) -> None:
        job = await self._find(call)
        await call.answer(encode(JobAnswer(**await _asked(lambda: shown(self._desk.store, job)))))

    async def cancel(self, call: Call) -> None:
        job = await self._find(call)
        record = await _asked(lambda: self._desk.store.cancel(job, self._who(call)))
        self._desk.wake()
        await call.answer(encode(_answer(record)))

    async def logs(self, call: Call) -> None:
        offset = _whole(_query(call), "offset", 0, -(2**53), 2**53)
        job = await self._find(call)
        await call.answer(encode(JobLogAnswer(**await _asked(lambda: logs_shown(self._desk.store, job, offset)))))

    def _checked(self, call: Call, job: Submission) -> Submission:
        """As this client may submit it here."""
        if job.type not in self._desk.types:
            if job.type == COMMAND:
                raise Forbidden("this server runs no commands; training: {commands: true} lets it", code="commands_off")
            raise BadRequest(f"type: {job.type!r} jobs are not run here", param="type", code="unknown_type")
        if self._is_admin(call):
            return job
        if job.type == COMMAND:
            message = "a job that runs a command needs the admin key"
            has_key = b"authorization" in call.headers
            raise Forbidden(message, code="not_admin") if has_key else Unauthorised(message)
        if self._keys.is_open:
            return job
        if job.user not in ("", call.tenant):
            raise Forbidden(f"user: this key is {call.tenant!r}'s", param="user", code="not_yours")
        return msgspec.structs.replace(job, user=call.tenant)

    async def _find(self, call: Call) -> str:
        """The id of a job that this client may know of; of others it learns nothing."""
        job: str = call.scope["path_params"]["job"]
        record = await _asked(lambda: self._desk.store.get(job))
        if not self._may_see(call, record):
            raise NotFound(f"there is no job {job[:80]!r}", param="job", code="no_such_job")
        return job

    def _may_see(self, call: Call, record: Record) -> bool:
        if self._is_admin(call):
            return True
        return record.type != COMMAND if self._keys.is_open else record.user == call.tenant

    def _is_admin(self, call: Call) -> bool:
        return self._keys.is_admin(call.headers.get(b"authorization"))

    def _who(self, call: Call) -> str:
        return "admin" if self._is_admin(call) else call.tenant or "anybody"


async def _asked(work: Callable[[], T]) -> T:
    """Of the store, beside the event loop, its errors in HTTP's words."""
    try:
        return await asyncio.to_thread(work)
    except NoSuchJob as error:
        raise NotFound(str(error), param="job", code="no_such_job") from None
    except JobExists as error:
        raise Conflict(str(error), param="id", code="exists") from None
    except Ended as error:
        raise Conflict(str(error), param="job", code="ended") from None
    except OverQuota as error:
        raise QuotaReached(str(error)) from None
    except StoreError as error:
        raise Unavailable(str(error), code="store", retry_after_s=1) from None


def _read(words: object) -> Submission:
    try:
        return read_submission(words)
    except InputError as error:
        raise from_input(InputError(str(error).removeprefix("job: "))) from None
    except (RecursionError, UnicodeError):
        raise BadRequest("the job is nested too deeply, or not Unicode") from None


def _listed(records: Sequence[Record]) -> bytes:
    return encode(JobsAnswer([_answer(record) for record in records]))


def _answer(record: Record) -> JobAnswer:
    return JobAnswer(**record.view())


def _query(call: Call) -> dict[str, str]:
    given = call.scope.get("query_string", b"").decode("latin-1")
    try:
        return {name: values[-1] for name, values in parse_qs(given, max_num_fields=20).items()}
    except ValueError:
        raise BadRequest("the query has too many fields") from None


def _whole(query: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    try:
        value = int(query[name][:20]) if name in query else default
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise BadRequest(f"{name}: expected a whole number from {least} to {most}", param=name)
    return value
