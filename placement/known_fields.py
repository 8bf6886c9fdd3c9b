"""What would be right where a document has a field that its type does not know."""

from __future__ import annotations

import difflib
import re

from msgspec import inspect

_STEPS = re.compile(r"\.(?P<field>[^.\[]+)|\[(?P<item>[^\]]*)\]")
_MOST_NAMED = 12


def suggest_field(kind: type, place: str, unknown: str) -> str:
    """`place` as msgspec writes it: $.models[0]. The field that is likely meant, or all there are if these are few."""
    steps = [match["field"] for match in _STEPS.finditer(place)]
    known = sorted(_fields(inspect.type_info(kind), steps))
    close = difflib.get_close_matches(unknown, known, n=1)
    if close:
        return f"; did you mean `{close[0]}`?"
    return f"; there are {', '.join(known)}" if 0 < len(known) <= _MOST_NAMED else ""


def _fields(node: inspect.Type, steps: list[str | None]) -> set[str]:
    """Names of the fields of whatever structs stand there; a step None goes to an item."""
    match node:
        case inspect.UnionType(types=types):
            return {name for one in types for name in _fields(one, steps)}
        case inspect.StructType(fields=fields) if not steps:
            return {one.encode_name for one in fields}
        case inspect.StructType(fields=fields):
            return {name for one in fields if one.encode_name == steps[0] for name in _fields(one.type, steps[1:])}
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item) if steps:
            return _fields(item, steps[1:])
        case inspect.DictType(value_type=value) if steps:
            return _fields(value, steps[1:])
    return set()
