"""Whom the queue asks for devices, and tells what its jobs hold."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class Devices(Protocol):
    """The ledger of whoever owns the devices."""

    def open(self) -> Collection[str]:
        """Names of the devices that jobs may have now, those they hold included. One that is missing is wanted back:
        the job that holds it shrinks or is suspended."""
        ...

    def can_take(self, job: str, devices: Collection[str]) -> bool: ...

    def take(self, job: str, devices: Collection[str]) -> None:
        """They are the job's from now on, perhaps beside other jobs that hold a part of them."""
        ...

    def give_back(self, job: str) -> None:
        """The job holds nothing any more."""
        ...


class OwnDevices:
    """Devices that belong to the queue alone."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = tuple(names)
        self.held: dict[str, tuple[str, ...]] = {}

    def open(self) -> Collection[str]:
        return self._names

    def can_take(self, job: str, devices: Collection[str]) -> bool:
        return set(devices) <= set(self._names)

    def take(self, job: str, devices: Collection[str]) -> None:
        assert self.can_take(job, devices)
        self.held[job] = tuple(devices)

    def give_back(self, job: str) -> None:
        self.held.pop(job, None)
