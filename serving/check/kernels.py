"""Every Triton kernel against its torch twin on the device, and its speed against torch's own copy or product there.
Where there is no GPU, in Triton's interpreter, which tells whether a kernel is right and nothing of how fast it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from serving.check.attention_case import LARGE, SMALL, twin
from serving.check.errand import Errand, send
from serving.check.limits import Limits, measure_limits, seconds_of
from serving.check.results import Finding, judged, telling

TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2}
"""Of 1 + the number itself: numbers of half precision lie the further apart the larger they are."""


async def check_all_kernels(devices: list[str]) -> list[Finding]:
    """On one device of each kind: they are alike."""
    is_cpu = devices[0].startswith("cpu")
    errands = {"triton": Errand(task="kernels", device=devices[0])}
    if is_cpu:
        interpreted = {"TRITON_INTERPRET": "1"}
        errands = {
            "triton": Errand(task="kernels", device=devices[0], environment=interpreted),
            "cpu": Errand(task="cpu_kernels", device=devices[0]),
        }
    found = list[Finding]()
    for name, errand in errands.items():
        with telling("kernels", name, found):
            rows = (await send([errand]))[0]
            found += [judged("kernels", row["what"], row["holds"], row["note"], **row["figures"]) for row in rows]
    return found


@dataclass(frozen=True)
class Case:
    """A kernel's work, its twin's, and how much of what it is bound by it does."""

    what: str
    run: Callable[[], Tensor]
    expect: Callable[[], Tensor]
    bytes_moved: float = 0.0
    flops: float = 0.0


def check_kernels(device: str) -> list[dict[str, Any]]:
    """In the errand's process."""
    is_interpreted = device.startswith("cpu")
    where = torch.device("cpu" if is_interpreted else "cuda:0")
    dtype = torch.float32 if is_interpreted else torch.float16
    limits = None if is_interpreted else measure_limits(where, dtype)
    return [judge(case, where, dtype, limits) for case in _cases(where, dtype, small=is_interpreted)]


def judge(case: Case, where: torch.device, dtype: torch.dtype, limits: Limits | None) -> dict[str, Any]:
    error = error_of(case.run(), case.expect())
    figures: dict[str, Any] = {"error": float(f"{error:.1e}")}
    note = "" if limits is not None else "in the interpreter"
    if limits is not None:
        seconds = seconds_of(case.run, where)
        if case.flops / limits.flops > case.bytes_moved / limits.bytes_per_s:
            figures |= {"TFLOP_per_s": round(case.flops / seconds / 1e12, 4)}
            figures |= {"to_torch": round(case.flops / seconds / limits.flops, 2)}
        else:
            figures |= {"GB_per_s": round(case.bytes_moved / seconds / 1e9, 2)}
            figures |= {"to_torch": round(case.bytes_moved / seconds / limits.bytes_per_s, 2)}
    return {"what": case.what, "holds": error <= TOLERANCE[dtype], "note": note, "figures": figures}


def error_of(found: Tensor, expected: Tensor) -> float:
    """The largest difference, by 1 + the number that is expected; whole numbers must be the same."""
    off = (found.double() - expected.double()).abs()
    return float((off / (1 + expected.double().abs()) if expected.is_floating_point() else off).max())


def _cases(where: torch.device, dtype: torch.dtype, *, small: bool) -> Iterator[Case]:
    from serving.attention import Attention, triton_paged

    item = dtype.itemsize
    ours = Attention(triton_paged.paged_attention, triton_paged.store_kv)
    for shape in SMALL if small else LARGE:
        step = shape.make(where, dtype)
        yield Case(
            f"triton attention {shape.name}",
            lambda step=step: step.run(ours),  # type: ignore[misc]
            lambda step=step: step.run(twin()),  # type: ignore[misc]
            shape.bytes_read(item),
            shape.flops,
        )
    yield _storing(ours, where, dtype, tokens=6 if small else 4096, heads=2 if small else 8)
    yield from _expert_cases(where, dtype, small=small)
    yield from _row_cases(where, dtype, small=small)
    yield from _int8_cases(where, dtype, small=small)


def _storing(ours: Any, where: torch.device, dtype: torch.dtype, tokens: int, heads: int) -> Case:
    width, blocks = 16 if tokens < 100 else 128, tokens // 4
    new = torch.randn(2, tokens, heads, width, generator=torch.Generator().manual_seed(2)).to(where, dtype)
    slots = torch.randperm(blocks * 16, generator=torch.Generator().manual_seed(3))[:tokens].to(where)

    def store(by: Any) -> Tensor:
        caches = torch.zeros(2, blocks, heads, 16, width, device=where, dtype=dtype)
        by.store_kv(new[0], new[1], caches[0], caches[1], slots)
        return caches

    return Case("triton cache store", lambda: store(ours), lambda: store(twin()), 4.0 * new.nbytes)


def _expert_cases(where: torch.device, dtype: torch.dtype, *, small: bool) -> Iterator[Case]:
    from moe import steps
    from moe.kernels import combining, products, sorting
    from serving.models.expert_forms import quantise_stack

    slots, hidden, inner, top_k = (4, 32, 16, 2) if small else (64, 2048, 1024, 8)
    random = torch.Generator().manual_seed(4)
    how: dict[str, Any] = {"activation": "silu", "gated": True}
    for load, tokens in (("few", 6), ("many", 40)) if small else (("few", 32), ("some", 512), ("many", 4096)):
        places = torch.rand(tokens, slots, generator=random).argsort(dim=1)[:, :top_k].to(where)
        x = torch.randn(tokens, hidden, generator=random).to(where, dtype)
        weight = (torch.randn(slots, 2 * inner, hidden, generator=random) * hidden**-0.5).to(where, dtype)
        order = steps.sort_places(places, slots)
        rows = tokens * top_k
        moved, flops = float(weight.nbytes + 2 * x.nbytes), 4.0 * rows * hidden * inner
        arrays = (x, order.tokens, order.ends)
        yield Case(
            f"triton expert product, {load} rows",
            lambda arrays=arrays, weight=weight: products.multiply(*arrays, weight, **how),  # type: ignore[misc]
            lambda arrays=arrays, weight=weight: steps.multiply(*arrays, weight, **how),  # type: ignore[misc]
            moved,
            flops,
        )
        if load == "few":
            eighth, scale = quantise_stack(weight)
            yield Case(
                "triton expert product, int8",
                lambda arrays=arrays, w=eighth, s=scale: products.multiply(*arrays, w, s, **how),  # type: ignore[misc]
                lambda arrays=arrays, w=eighth, s=scale: steps.multiply(*arrays, w, s, **how),  # type: ignore[misc]
                moved / weight.itemsize,
                flops,
            )
            answers = torch.randn(rows, hidden, generator=random).to(where, dtype)
            shares = torch.rand(tokens, top_k, generator=random).to(where)
            yield Case(
                "triton expert sort",
                lambda p=places: sorting.sort_places(p, slots).rows,  # type: ignore[misc]
                lambda p=places: steps.sort_places(p, slots).rows,  # type: ignore[misc]
                float(places.nbytes * slots),
            )
            yield Case(
                "triton expert combine",
                lambda a=answers, r=order.rows, s=shares: combining.combine(a, r, s),  # type: ignore[misc]
                lambda a=answers, r=order.rows, s=shares: steps.combine(a, r, s),  # type: ignore[misc]
                2.0 * answers.nbytes,
            )


def _row_cases(where: torch.device, dtype: torch.dtype, *, small: bool) -> Iterator[Case]:
    from serving.models import fused_rows
    from serving.models.rope import make_rotation, rotate

    tokens, heads, width = (5, 3, 16) if small else (4096, 48, 128)
    random = torch.Generator().manual_seed(5)
    qkv = torch.randn(tokens, heads, width, generator=random).to(where, dtype)
    by = make_rotation(torch.rand(width // 2, generator=random).to(where), torch.arange(tokens, device=where))
    turned = heads - 1
    yield Case(
        "triton rope",
        lambda: fused_rows.rotate(qkv.clone(), turned, by),
        lambda: rotate(qkv.clone(), turned, by),
        4.0 * qkv.nbytes,
    )
    x = torch.randn(tokens, heads * width, generator=random).to(where, dtype)
    weight = torch.rand(heads * width, generator=random).to(where, dtype)
    yield Case(
        "triton rms norm",
        lambda: fused_rows.rms_norm(x, weight, 1e-6),
        lambda: torch.nn.functional.rms_norm(x.float(), weight.shape, weight.float(), 1e-6).to(dtype),
        2.0 * x.nbytes,
    )


def _int8_cases(where: torch.device, dtype: torch.dtype, *, small: bool) -> Iterator[Case]:
    """One of each kernel, at the most tokens that its tiles hold."""
    from serving.check.int8_case import Int8Case
    from serving.models import int8_product
    from serving.models.linear import multiply_int8

    for tokens, normed in ((5, True), (20, False)) if small else ((16, True), (64, True), (64, False)):
        case = Int8Case(tokens, *((48, 40) if small else (4096, 6144)), normed)
        arrays = case.make(where, dtype)
        yield Case(
            f"triton {'norm and ' if normed else ''}int8 product, {tokens} tokens",
            lambda arrays=arrays: int8_product.multiply(*arrays),  # type: ignore[misc]
            lambda arrays=arrays: multiply_int8(*arrays),  # type: ignore[misc]
            case.bytes_moved(dtype.itemsize),
            case.flops,
        )
