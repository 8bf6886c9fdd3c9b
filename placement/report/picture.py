"""A plan drawn on its devices as SVG: nodes, their devices, and below them the groups with shape and
models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from placement.cluster import Cluster
from placement.plan import Group, Plan
from reports import escaped, shortened

TILE, TILE_HEIGHT, GAP, MARGIN, TITLE, LINE = 92, 46, 6, 10, 24, 15
LETTER = 6.1
"""Width of a letter of the small print."""
MOST_LINES = 10
MOST_DEVICES = 1024


@dataclass(frozen=True)
class _Block:
    """Devices of one node that stand side by side: those of one group, or an idle one."""

    group: int | None
    devices: tuple[str, ...]

    @property
    def width(self) -> int:
        return len(self.devices) * (TILE + GAP) - GAP


def plan_picture(cluster: Cluster, plan: Plan) -> str:
    """The whole cluster, or as many of its first nodes as hold `MOST_DEVICES` devices."""
    parts: list[str] = []
    y, width, drawn = 0, 0, 0
    owner = {device: index for index, group in enumerate(plan.groups) for device in group.devices}
    for number, node in enumerate(cluster.nodes):
        names = [device.name for device in cluster.devices if device.node == number][: MOST_DEVICES - drawn]
        drawn += len(names)
        blocks = list(_blocks(names, owner, plan.groups))
        texts = [_lines(plan.groups[b.group], b.width) if b.group is not None else [] for b in blocks]
        height = TITLE + TILE_HEIGHT + GAP + LINE * max(map(len, texts), default=0) + 2 * MARGIN
        across = sum(block.width + GAP for block in blocks) - GAP + 2 * MARGIN
        parts.append(f'<rect class="node" x="0.5" y="{y + 0.5}" width="{across}" height="{height}" rx="8"/>')
        title = f"{node.name}: {node.devices} x {node.kind}, {node.memory / 2**30:.3g} GiB each"
        parts.append(_text(MARGIN, y + 19, _fitting(title, across - 2 * MARGIN), "font-weight:600"))
        x = MARGIN
        for block, lines in zip(blocks, texts, strict=True):
            parts.append(_draw(block, lines, plan, x, y + TITLE + MARGIN // 2))
            x += block.width + GAP
        y += height + MARGIN
        width = max(width, across)
        if drawn >= MOST_DEVICES:
            break
    left = len(cluster.devices) - drawn
    if left:
        parts.append(_text(MARGIN, y + 14, f"and {left} devices more", ""))
        y += 24
    size = f'width="{width + 1}" height="{y}" viewBox="0 0 {width + 1} {y}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">{"".join(parts)}</svg>'


def group_colour(index: int) -> str:
    """Neighbours differ: hues a golden angle apart, and half transparent, so that text is readable on
    either paper."""
    return f"hsla({(210 + 137.5 * index) % 360:.0f}, 65%, 50%, 0.28)"


def _blocks(names: Sequence[str], owner: dict[str, int], groups: Sequence[Group]) -> Iterator[_Block]:
    """The node's devices, those of a group together and in stage order."""
    seen: set[int] = set()
    here = set(names)
    for name in names:
        index = owner.get(name)
        if index is None:
            yield _Block(None, (name,))
        elif index not in seen:
            seen.add(index)
            yield _Block(index, tuple(device for device in groups[index].devices if device in here))


def _draw(block: _Block, lines: Sequence[str], plan: Plan, x: int, y: int) -> str:
    parts = []
    group = None if block.group is None else plan.groups[block.group]
    for place, name in enumerate(block.devices):
        left = x + place * (TILE + GAP)
        kind = 'class="idle"'
        role = "idle"
        if group is not None and block.group is not None:
            kind = f'style="fill:{group_colour(block.group)}"'
            stage, shard = divmod(group.devices.index(name), group.tp)
            role = " ".join(
                [f"stage {stage}"] * (group.pp > 1) + [f"shard {shard}"] * (group.tp > 1) or ["whole models"]
            )
        parts.append(f'<rect {kind} x="{left}" y="{y}" width="{TILE}" height="{TILE_HEIGHT}" rx="5"/>')
        parts.append(_text(left + 7, y + 19, _fitting(name, TILE - 14), "font-size:12px"))
        parts.append(_text(left + 7, y + 36, role, "font-size:11px", "faint"))
    if group is None or block.group is None:
        return "".join(parts)
    top = y + TILE_HEIGHT + 3
    height = LINE * len(lines) + 4
    colour = f'style="fill:{group_colour(block.group)}"'
    parts.append(f'<rect {colour} x="{x}" y="{top}" width="{block.width}" height="{height}" rx="5"/>')
    parts += [
        _text(x + 7, top + LINE * (number + 1) - 2, line, f"font-size:11px;font-weight:{400 if number else 600}")
        for number, line in enumerate([f"G{block.group}: {lines[0]}", *lines[1:]])
    ]
    whole = ", ".join(group.models) + (f"; parked: {', '.join(group.parked)}" if group.parked else "")
    # A picture in the picture cuts off what is wider than its letters were taken to be.
    frame = f'x="{x}" y="{y}" width="{block.width}" height="{top + height - y}"'
    inner = f'viewBox="{x} {y} {block.width} {top + height - y}"'
    return f"<svg {frame} {inner}><title>{escaped(whole)}</title>{''.join(parts)}</svg>"


def _lines(group: Group, width: int) -> list[str]:
    """Shape, then the models, as many to a line as fit."""
    letters = max(int((width - 14) / LETTER), 4)
    lines = [f"tp {group.tp}, pp {group.pp}"]
    names = [*group.models, *(f"({name})" for name in group.parked)]
    line = ""
    for number, name in enumerate(names):
        word = _fitting(name, width - 14)
        joined = f"{line}, {word}" if line else word
        if len(joined) <= letters:
            line = joined
            continue
        lines.append(line)
        line = word
        if len(lines) >= MOST_LINES:
            return [*lines, f"+{len(names) - number} more"]
    return [*lines, line] if line else lines


def _fitting(text: str, width: int) -> str:
    return shortened(text, max(int(width / LETTER), 2))


def _text(x: int, y: int, text: str, style: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x}" y="{y}" style="{style}"{named}>{escaped(text)}</text>'
