"""Logs go to what stderr is when something is logged."""

import io
import sys

import structlog

from serving.http import configure_logs, get_log


def test_a_changed_stderr_is_followed(monkeypatch):
    first, second = io.StringIO(), io.StringIO()
    before = structlog.get_config()
    try:
        monkeypatch.setattr(sys, "stderr", first)
        configure_logs("json")
        log = get_log("test")
        log.info("one")
        monkeypatch.setattr(sys, "stderr", second)
        first.close()
        log.info("two")
    finally:
        structlog.configure(**before)
    assert '"event":"two"' in second.getvalue()
