"""Jobs to submit, from a file: CSV (all run the command given beside it) or YAML and JSON (each says what it runs)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from placement.files import read_document
from training.job_files import check_jobs, read_jobs
from training.queue.submission import Submission, read_submission, with_command


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    jobs: list[dict[str, Any]]


def read_submissions(path: Path, **more: Any) -> list[Submission]:
    """The jobs of a file; `more` (what to run, who asks) goes for each that does not say so itself."""
    if path.suffix not in (".yaml", ".yml", ".json"):
        return [with_command(job, **_but(more, job.user)) for job in read_jobs(path)]
    found = []
    base = path.resolve().parent
    for number, words in enumerate(read_document(path, _Document).jobs):
        given = {name: value for name, value in more.items() if name not in words}
        if words.get("type", given.get("type")) == "lm":
            given = {name: value for name, value in given.items() if name in ("type", "user")}
        elif isinstance(directory := words.get("directory", str(base)), str):
            given["directory"] = str(base / directory)
        found.append(read_submission(words | given, f"{path}: jobs[{number}]"))
    check_jobs(list(found), str(path))
    return found


def _but(more: dict[str, Any], user: str) -> dict[str, Any]:
    """A CSV's own user goes before the one given for all."""
    return more | {"user": user} if user else more
