"""Figures of the loans for /metrics."""

from __future__ import annotations

from collections.abc import Iterator

from serving.controller.lender import Lender
from serving.http import Family


def loan_figures(lender: Lender | None) -> Iterator[Family]:
    if lender is None:
        return
    lent = sum(len(loan.devices) for loan in lender.loans.values() if loan.state == "lent")
    yield Family("devices_lent", "Devices of serving groups that training has.", "gauge", (), {(): float(lent)})
    yield Family("lent_device_seconds", "Device time lent so far.", "counter", (), {(): lender.lent_s})
    yield Family("recalls", "How often devices were called back.", "counter", (), {(): float(lender.recalls)})
    yield Family("recall_seconds", "What the last call back took.", "gauge", (), {(): lender.last_recall_s})
