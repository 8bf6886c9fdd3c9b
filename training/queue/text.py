"""Jobs as people read them on a terminal."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from placement.text import columns

LONGEST_WHY = 60


def jobs_text(jobs: list[dict[str, Any]], now: float) -> str:
    if not jobs:
        return "no jobs"
    table = [["id", "user", "type", "state", "workers", "devices", "age", "why"]]
    for job in jobs:
        fewest, most = job["workers"]
        workers = str(fewest) if fewest == most else f"{fewest}-{most}"
        age = _span(now - job["submitted"])
        devices = ",".join(job["devices"]) or "-"
        table.append(
            [job["id"], job["user"] or "-", job["type"], job["state"], workers, devices, age, job["why"][:LONGEST_WHY]]
        )
    return "\n".join(columns(table))


def job_text(job: dict[str, Any], now: float) -> str:
    asked = job["asked"]
    facts = {
        "state": f"{job['state']}: {job['why']}",
        "user": job["user"] or "-",
        "type": job["type"],
        "command": " ".join(asked.get("command", ())),
        "workers": "-".join(str(count) for count in dict.fromkeys(job["workers"])),
        "devices": ", ".join(job["devices"]),
        "submitted": f"{_span(now - job['submitted'])} ago",
        "ran": f"{_span(job['run_s'])}, {job['device_s']:.0f} device-seconds" if job["started"] else "",
        "attempts": f"{job['attempts']}, {job['preemptions']} preemptions" if job["attempts"] else "",
        "exit code": "" if job["exit_code"] is None else str(job["exit_code"]),
        "folder": job["folder"] or "",
    }
    lines = [f"{name:<10} {value}" for name, value in {"job": job["id"], **facts}.items() if value]
    events = [["", "when", "who", "state", "why"]]
    for event in job["events"]:
        when = datetime.fromtimestamp(event["at"]).strftime("%Y-%m-%d %H:%M:%S")
        events.append(["", when, event["who"], event["state"], event["why"][:LONGEST_WHY]])
    return "\n".join([*lines, "", *columns(events)])


def _span(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"
