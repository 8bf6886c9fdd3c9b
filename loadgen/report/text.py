"""A summary as text for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from loadgen.max_rate import MaxRate
from loadgen.results.figures import Part, Spread
from loadgen.results.summary import Summary

_SPREADS = ("latency", "ttft", "tpot", "itl", "lag")
_SHOWN = (("latency", "p50"), ("latency", "p99"), ("ttft", "p99"), ("tpot", "p99"))
_LIMITS = {
    "generator": " (the generator, not the server, sets this limit)",
    "interrupt": " (so far: the search was interrupted)",
}
_HEADER = ("requests", "rate", "cv", "attainment", "goodput", "refused", "failed", "p50", "p99", "TTFT p99", "TPOT p99")
_NAMES = {"latency": "latency", "ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "lag": "generator lag"}


def summary_text(summary: Summary) -> str:
    lines = [
        f"requests    {summary.requests} in {summary.duration:g} s: {summary.answered} answered, "
        f"{summary.refused} refused, {summary.failed} failed",
        f"attainment  {percent(summary.attainment)}, worst model {summary.worst_model[0]} "
        f"{percent(summary.worst_model[1])}",
        f"goodput     {summary.goodput:.2f} requests/s, {summary.output_tokens_per_s:.0f} tokens/s",
        f"arrivals    {summary.rate:.2f}/s sent ({summary.asked.rate:g} asked, {summary.drawn_rate:.2f} drawn), "
        f"cv {_cv(summary)}",
        f"generator   {percent(summary.generator_cpu)} of a core",
        "",
        *columns(spread_rows(summary)),
    ]
    for title, counts in (("refused", summary.refusals), ("failed", summary.failures)):
        if counts:
            lines.append(f"{title}: " + ", ".join(f"{reason} {count}" for reason, count in counts.items()))
    if summary.shortened:
        lines.append(f"shortened: {summary.shortened} requests had more tokens than their model takes")
    if len(summary.models) > 1:
        lines += ["", *columns(part_rows("model", summary.models.items()))]
    if len(summary.stages) > 1:
        stages = [(f"rate {part.asked.rate:g}, cv {part.asked.cv}", part) for part in summary.stages]
        lines += ["", *columns(part_rows("stage", stages))]
    lines += [f"INVALID: {reason}" for reason in summary.invalid_because]
    return "\n".join(lines)


def max_rate_text(found: MaxRate) -> str:
    rows = [["rate", "within goals", "held"]]
    for probe in found.probes:
        held = "yes" if probe.held else "no" if probe.valid else "no: the generator could not keep up"
        rows.append([f"{probe.rate:.4g}/s", percent(probe.share), held])
    return "\n".join([*columns(rows), f"largest rate held at {percent(found.at)}: {max_rate_words(found)}"])


def max_rate_words(found: MaxRate) -> str:
    if found.rate is not None:
        said = f"{found.rate:.4g}/s"
    else:
        least = min(probe.rate for probe in found.probes)
        said = f"none; not even {least:.4g}/s, the least tried, was held"
    return said + _LIMITS.get(found.limited_by, "")


def part_rows(title: str, parts: Iterable[tuple[str, Part]]) -> list[list[str]]:
    """A row a part, a header first."""
    rows = [[title, *_HEADER]]
    for name, part in parts:
        rows.append(
            [
                name,
                str(part.requests),
                f"{part.rate:.4g}/s",
                "" if part.cv is None else f"{part.cv:.2f}",
                percent(part.attainment),
                f"{part.goodput:.4g}/s",
                str(part.refused),
                str(part.failed),
                *(milliseconds(getattr(part, which), at) for which, at in _SHOWN),
            ]
        )
    return rows


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with two spaces between the columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def percent(share: float) -> str:
    """ "98.76%"; never rounded up to all of it."""
    return f"{int(share * 10_000 + 1e-6) / 100:.2f}%"


def milliseconds(spread: Spread | None, at: str) -> str:
    return "" if spread is None else f"{getattr(spread, at) * 1e3:.1f} ms"


def _cv(summary: Summary) -> str:
    """What is asked is each model's, what is sent and drawn is of all requests as one stream."""
    if summary.cv is None or summary.drawn_cv is None:
        return "not to be told from so few"
    if len(summary.models) == 1:
        return f"{summary.cv:.3f} sent ({summary.asked.cv} asked, {summary.drawn_cv:.3f} drawn)"
    together = f"{summary.cv:.3f} sent ({summary.drawn_cv:.3f} drawn) of all models together"
    return f"{together}; asked of each model: {summary.asked.cv}"


def spread_rows(part: Part) -> list[list[str]]:
    shown = ("mean", "p50", "p90", "p95", "p99", "max")
    rows = [["", *shown]]
    for name in _SPREADS:
        spread = getattr(part, name)
        if spread is not None:
            rows.append([_NAMES[name], *(milliseconds(spread, at) for at in shown)])
    return rows
