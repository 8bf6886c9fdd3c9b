"""Locust's web page: a tab with attainment, goodput and reasons for each model, and a form that says what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from loadgen.errors import TrafficError
from loadgen.swarm.arguments import given_arguments

KEY = "penstock"
_COLUMNS = {
    "model": "Model",
    "requests": "Requests",
    "attainment": "Attainment",
    "goodput": "Goodput (req/s)",
    "ttft": "TTFT p99 (ms)",
    "tpot": "TPOT p99 (ms)",
    "reasons": "Not answered",
}


def extend_page(
    environment: Any, check: Callable[[Mapping[str, str], str], object], span_s: Callable[[str], float]
) -> None:
    """`check` raises TrafficError for options and a host that will not do; `span_s` as in goal_rows."""
    from flask import Response, jsonify, request

    web = environment.web_ui
    web.template_args |= {
        "extended_tabs": [{"title": "Goals", "key": KEY}],
        "extended_tables": [
            {"key": KEY, "structure": [{"key": key, "title": title} for key, title in _COLUMNS.items()]}
        ],
    }

    def add_rows(response: Response) -> Response:
        if request.path.endswith("/stats/requests") and response.is_json:
            shown = {"key": KEY, "data": goal_rows(environment.stats, span_s)}
            response.set_data(json.dumps(response.get_json() | {"extended_stats": [shown]}))
        return response

    def refuse_wrong() -> Response | None:
        if request.method != "POST" or not request.path.endswith("/swarm"):
            return None
        host = request.form.get("host") or environment.host or ""
        try:
            check(given_arguments(environment.parsed_options, request.form), host)
        except TrafficError as error:
            return jsonify({"success": False, "message": str(error), "host": host})
        return None

    web.app.after_request(add_rows)
    web.app.before_request(refuse_wrong)


def goal_rows(stats: Any, span_s: Callable[[str], float]) -> list[dict[str, str]]:
    """From Locust's own entries, so that they cost next to nothing. `span_s`: for how long a stage was sent; with an
    empty name, all. Locust's own requests a second are always over the whole test."""
    rows = []
    for kind in ("SLO", "STAGE"):
        for name in sorted(name for name, of in stats.entries if of == kind):
            entry = stats.get(name, kind)
            good = stats.get(name, "GOODPUT") if (name, "GOODPUT") in stats.entries else entry
            over_s = span_s(name if kind == "STAGE" else "")
            reasons = [f"{error.error} {error.occurrences}" for error in stats.errors.values() if error.name == name]
            rows.append(
                {
                    "model": name,
                    "requests": str(entry.num_requests),
                    "attainment": f"{1 - entry.fail_ratio:.2%}",
                    "goodput": f"{(good.num_requests - good.num_failures) / over_s:.2f}" if over_s else "",
                    "ttft": _p99(stats, name, "TTFT"),
                    "tpot": _p99(stats, name, "TPOT"),
                    "reasons": ", ".join(reasons),
                }
            )
    return rows


def _p99(stats: Any, name: str, kind: str) -> str:
    return str(stats.get(name, kind).get_response_time_percentile(0.99)) if (name, kind) in stats.entries else ""
