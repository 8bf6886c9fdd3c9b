"""Makes the compiled rules ready before a request needs them: from the disk in a moment, else in half a minute."""

from __future__ import annotations

from typing import Any

from numba import boolean, float64, int8, int64, types

from router import door, engine_door

_FLOOR = (float64[::1], int64[::1], boolean[::1])
_ALL = (*_FLOOR, *_FLOOR, int8[::1])
_TYPES: Any = types
_GOALS = _TYPES.UniTuple(float64, 3)

_SIGNATURES: tuple[tuple[Any, tuple[Any, ...]], ...] = (
    (door.arrive, (*_FLOOR, int64, int64, float64, float64, int64, float64)),
    (door.bind, (*_FLOOR, int64, int64, float64, float64)),
    (door.advance, (*_FLOOR, float64)),
    (door.settle, (*_FLOOR, float64, int64)),
    (door.displace, (*_FLOOR, int64, int64, float64, float64, int64, int64)),
    (door.take_out, (*_FLOOR, int64)),
    (door.earliest_finish, (*_FLOOR, int64, float64)),
    (door.correct, (*_FLOOR, float64[:, :, :, ::1], float64[:, ::1], int64, int64, float64)),
    (door.move, (*_FLOOR, int64, float64, float64)),
    (engine_door.admit, (*_ALL, int64, int64, float64, _GOALS, int64)),
    (engine_door.can_when_idle, (*_ALL, int64, int64, _GOALS)),
    (engine_door.join, (*_ALL, int64, int64)),
    (engine_door.leave, (*_ALL, int64, int64)),
    (engine_door.hand, (*_ALL, int64, float64, int64)),
    (engine_door.place, (*_ALL, int64, int64, float64)),
    (engine_door.first_token, (*_ALL, int64, int64, int64, float64, boolean)),
    (engine_door.end, (*_ALL, int64, int64, int64, int64, float64)),
    (engine_door.look, (*_ALL, float64)),
)


def warm_up() -> None:
    """Compile each rule for the types it is called with; other types are then converted, never compiled for."""
    for rule, signature in _SIGNATURES:
        if not rule.signatures:
            rule.compile(signature)
        rule.disable_compile()
