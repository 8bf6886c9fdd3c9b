"""Who has which device: one owner each, at any time. The one truth about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Owner:
    """`name` of the serving group or the training job; none of what is idle."""

    kind: Literal["idle", "group", "job"]
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".rstrip()


IDLE = Owner("idle")


class Ledger:
    """Every change names the owner of before: who is wrong about it has no right to the device."""

    def __init__(self, devices: Iterable[str]) -> None:
        self._owners = dict.fromkeys(devices, IDLE)
        self.on_move: Callable[[], None] = lambda: None
        """Called when devices have changed hands."""

    @property
    def owners(self) -> Mapping[str, Owner]:
        return dict(self._owners)

    def can_move(self, devices: Iterable[str], before: Owner) -> bool:
        return all(self._owners[device] == before for device in devices)

    def move(self, devices: Iterable[str], before: Owner, after: Owner) -> None:
        """All of the devices, from one owner to another."""
        moved = list(devices)
        assert self.can_move(moved, before), f"{moved} are not all of {before}"
        self._owners.update(dict.fromkeys(moved, after))
        self.on_move()

    def keep(self, devices: Iterable[str]) -> None:
        """These are the devices from now on: new ones are idle, and of those that are gone none had an owner."""
        owners = {device: self._owners.get(device, IDLE) for device in devices}
        gone = {device: owner for device, owner in self._owners.items() if device not in owners}
        assert all(owner == IDLE for owner in gone.values()), f"{gone} still have owners"
        self._owners = owners

    def owned_by(self, owner: Owner) -> list[str]:
        return [device for device, one in self._owners.items() if one == owner]
