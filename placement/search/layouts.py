"""Which groups a cluster can be cut into: all of one class, or two classes side by side. Knows nothing of models."""

from __future__ import annotations

from collections.abc import Iterator

from placement.search.candidate import Space

_SHARES = (0.25, 0.5, 0.75)


def useful_classes(space: Space, kind: str) -> list[int]:
    """Classes of one device kind on which some model fits, small groups first."""
    classes = space.catalogue.classes
    useful = [c for c, entry in enumerate(classes) if entry.kind == kind and space.fits_alone[c].any()]
    return sorted(useful, key=lambda c: (space.sizes[c], c))


def uniform_layout(space: Space, kind: str, one: int) -> tuple[int, ...]:
    """As many groups of class `one` as the kind's devices allow; smaller ones on what is left over."""
    return fill_up(space, kind, _most(space, (), one, space.devices_of_kind[kind] // int(space.sizes[one])))


def mixed_layouts(space: Space, kind: str, one: int, two: int) -> Iterator[tuple[int, ...]]:
    """Groups of class `one` on a quarter, half, three quarters of the devices, of class `two` on the rest."""
    devices = space.devices_of_kind[kind]
    seen = set()
    for share in _SHARES:
        count = round(share * devices / int(space.sizes[one]))
        if count in seen or count < 1 or count * int(space.sizes[one]) > devices - int(space.sizes[two]):
            continue
        seen.add(count)
        first = _most(space, (), one, count)
        yield fill_up(space, kind, _most(space, first, two, devices // int(space.sizes[two])))


def fill_up(space: Space, kind: str, classes: tuple[int, ...]) -> tuple[int, ...]:
    """Devices left over become the largest groups that fit, of the last class's tensor ways where possible."""
    entries = space.catalogue.classes
    while (left := space.leftover(classes)[kind]) > 0:
        options = [c for c in useful_classes(space, kind) if space.sizes[c] <= left]
        tp = entries[classes[-1]].shape.tp if classes else 1
        options.sort(key=lambda c: (-space.sizes[c], entries[c].shape.tp != tp, c))
        grown = next(((*classes, c) for c in options if space.pack((*classes, c)) is not None), None)
        if grown is None:
            break
        classes = grown
    return classes


def _most(space: Space, classes: tuple[int, ...], one: int, count: int) -> tuple[int, ...]:
    """`classes` and as many of `count` groups of class `one` as can be packed beside them."""
    low, high = 0, max(count, 0)
    while low < high:
        middle = (low + high + 1) // 2
        if space.pack(classes + (one,) * middle) is None:
            high = middle - 1
        else:
            low = middle
    return classes + (one,) * low
