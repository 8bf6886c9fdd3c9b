"""Traces known by name, found in the folder that PENSTOCK_DATA names, or beside the checkout."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from loadgen.errors import TrafficError

_AZURE = Path("data", "azure_llm_2023")
_SERVEGEN = Path("data", "servegen")


@dataclass(frozen=True)
class TraceFiles:
    """`tokens`: of a trace that has them in a file of its own."""

    requests: Path
    tokens: Path | None = None


_NAMED = {
    "azure-code": TraceFiles(_AZURE / "azure2023_code.csv.gz"),
    "azure-conv": TraceFiles(_AZURE / "azure2023_conv.csv.gz"),
    "servegen": TraceFiles(_SERVEGEN / "m-large_days1-7_rate_cv.npz", _SERVEGEN / "m-large_client_tokens.csv"),
}


def find_trace(given: str) -> TraceFiles:
    """By name or by path; one line that says where it was looked for when it is not there."""
    files = _NAMED.get(given)
    if files is None:
        path = Path(given)
        if not path.is_file():
            raise TrafficError(f"--trace {given}: no such file; give a path, or one of {', '.join(_NAMED)}")
        return TraceFiles(path)
    root = Path(os.environ.get("PENSTOCK_DATA") or Path(__file__).parents[2] / "shared")
    found = TraceFiles(root / files.requests, None if files.tokens is None else root / files.tokens)
    if not found.requests.is_file():
        raise TrafficError(
            f"--trace {given}: {found.requests} is not there; set PENSTOCK_DATA to the folder with data/"
        )
    return found
