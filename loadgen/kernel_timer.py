"""Linux's timerfd: a timer that is polled like a socket and keeps to the nanosecond what it is set to.

Event loops round their own timers to milliseconds; with this one they need not spin to do better.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys

_MONOTONIC = 1
_ABSOLUTE = 1
_NS = 10**9


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _Time), ("value", _Time))


class KernelTimer:
    """`fd` becomes readable at the moment set."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.timerfd_create(_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def set(self, moment_s: float) -> None:
        """`moment_s` is on the monotonic clock, above 0."""
        ns = int(moment_s * _NS)
        setting = _Setting(_Time(0, 0), _Time(ns // _NS, ns % _NS))
        if self._libc.timerfd_settime(self.fd, _ABSOLUTE, ctypes.byref(setting), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 8)

    def close(self) -> None:
        os.close(self.fd)


def make_kernel_timer() -> KernelTimer | None:
    """None where the system has none."""
    if sys.platform != "linux":
        return None
    with contextlib.suppress(OSError, AttributeError):
        return KernelTimer()
    return None
