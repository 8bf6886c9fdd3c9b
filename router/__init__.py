"""Admission, queues and dispatch of live requests: asyncio, no HTTP, no torch."""

from router.live_group import LiveGroup
from router.request import PRIORITIES, NotServed, Priority, Reason, Request
from router.router import Router
from router.settings import RouterSettings
from router.statistics import Arrival, ClassStatistics, Refusal, Statistics
from router.warm_up import warm_up

__all__ = [
    "PRIORITIES",
    "Arrival",
    "ClassStatistics",
    "LiveGroup",
    "NotServed",
    "Priority",
    "Reason",
    "Refusal",
    "Request",
    "Router",
    "RouterSettings",
    "Statistics",
    "warm_up",
]
