"""What a user submits: a job's words, what to run, and how often to try again. Checked here, whoever brings it."""

from __future__ import annotations

import re
import secrets
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from placement.errors import InputError
from placement.files import convert, encode_json
from placement.units import Seconds
from training.jobs import Job, Workers

Type = Literal["lm", "command"]
TYPES: tuple[Type, ...] = get_args(Type)
MAX_SPEC_BYTES = 2**16
MAX_GRACE_S = 600.0
MAX_WAIT_S = 366 * 86400.0
MAX_DEADLINE_S = 10 * MAX_WAIT_S
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
OURS = "PENSTOCK_"


def new_id() -> str:
    return f"job-{secrets.token_hex(4)}"


class Submission(Job, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A job to run for real: `arrival` and `deadline` count from its submission, `duration` is what users expect."""

    id: str = msgspec.field(default_factory=new_id)
    gpus: Workers = 1
    type: Type = "command"
    command: tuple[str, ...] = ()
    """Program and arguments; no shell looks at them."""
    env: dict[str, str] = msgspec.field(default_factory=dict)
    """Further environment variables."""
    directory: str | None = None
    """Where it runs; its own folder when absent."""
    lm: dict[str, Any] = msgspec.field(default_factory=dict)
    """What a built-in job trains: read by its runner."""
    retries: Annotated[int, Meta(ge=0, le=100)] = 0
    """How often it starts again, from its checkpoint, after it has failed."""
    grace: Seconds = Seconds(10)
    """What it gets between SIGTERM and SIGKILL."""

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise ValueError(f"id {self.id[:80]!r}: give 1 to 64 letters, digits, dots, dashes or underscores")
        Job.__post_init__(self)
        for name in ("user", "group", "model", "tag", "kind"):
            if not getattr(self, name).isprintable():
                raise ValueError(f"job {self.id}: {name} has characters that cannot be printed")
        if not 0 <= self.grace <= MAX_GRACE_S:
            raise ValueError(f"job {self.id}: grace {self.grace:g}; expected seconds between 0 and {MAX_GRACE_S:g}")
        if self.arrival > MAX_WAIT_S:
            raise ValueError(f"job {self.id}: arrival {self.arrival:g} s from now; a year is the most")
        if self.deadline is not None and self.deadline > MAX_DEADLINE_S:
            raise ValueError(f"job {self.id}: deadline {self.deadline:g} s from now; ten years are the most")
        if self.type == "command":
            self._check_command()
        elif self.command or self.env or self.directory is not None:
            raise ValueError(f"job {self.id}: type {self.type} runs no command; leave out command, env and directory")

    def _check_command(self) -> None:
        if not self.command or not self.command[0]:
            raise ValueError(f"job {self.id}: no command; give a program and its arguments")
        if self.lm:
            raise ValueError(f"job {self.id}: `lm` is for jobs of type lm")
        for text in (*self.command, *self.env.values(), self.directory or ""):
            if "\0" in text:
                raise ValueError(f"job {self.id}: a zero byte in its command, env or directory")
        for name in self.env:
            if not _VARIABLE.fullmatch(name) or name.startswith(OURS):
                raise ValueError(f"job {self.id}: env {name[:80]!r}: not the name of a variable, or one of Penstock's")
        if self.directory is not None and not self.directory.startswith("/"):
            raise ValueError(f"job {self.id}: directory {self.directory[:80]!r} is relative; give it from the root")


def encode_submission(job: Submission) -> str:
    """As the store keeps it; an InputError when it is too large, or could not be read again."""
    try:
        encoded = encode_json(job)
    except UnicodeEncodeError as error:
        raise InputError(f"job {job.id}: holds text that is not Unicode") from error
    except RecursionError as error:
        raise InputError(f"job {job.id}: a value holds itself, or is nested too deeply") from error
    if len(encoded) > MAX_SPEC_BYTES:
        raise InputError(f"job {job.id}: {len(encoded)} bytes; at most {MAX_SPEC_BYTES} are kept for a job")
    text = encoded.decode()
    decode_submission(text, f"job {job.id}")
    return text


def decode_submission(text: str, where: str = "the store") -> Submission:
    return convert(_fields(text), Submission, where)


def read_submission(data: object, where: str = "job") -> Submission:
    """Of plain data, such as a request's body."""
    return convert(data, Submission, where)


def with_command(job: Job, **more: Any) -> Submission:
    """A job of a trace, with what it shall run."""
    return convert(_fields(encode_json(job)) | more, Submission, f"job {job.id}")


def _fields(document: str | bytes) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.json.decode(document)
    del data["version"]
    return data
