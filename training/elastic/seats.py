"""Who goes on where: those with the newest state first, so that what a job has learned is not left in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from training.elastic.member import Member


def seats(free: Mapping[str, str], members: Sequence[Member]) -> dict[str, Member]:
    """Who gets which device; `free` says on which node each is. On a node the newest come first, of these the ones that
    are still in a step, then those whose own device is free; whoever can keeps that."""
    found: dict[str, Member] = {}
    for node in set(free.values()):
        devices = [device for device, place in free.items() if place == node]
        here = sorted((one for one in members if one.node == node), key=lambda one: _rank(one, devices), reverse=True)
        found |= _seat(here[: len(devices)], devices)
    return found


def _rank(member: Member, devices: Sequence[str]) -> tuple[int, bool, bool]:
    return member.step, member.state == "parking", member.device in devices


def _seat(members: Sequence[Member], devices: Sequence[str]) -> dict[str, Member]:
    found: dict[str, Member] = {}
    others = []
    for member in members:
        if member.device in devices and member.device not in found:
            found[member.device] = member
        else:
            others.append(member)
    left = (device for device in devices if device not in found)
    return found | dict(zip(left, others, strict=False))
