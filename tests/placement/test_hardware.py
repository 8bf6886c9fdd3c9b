"""The table of device kinds: complete, plausible, and refused in one line where it has nothing to say."""

import msgspec
import pytest

from placement.costs.hardware import KINDS, Assumed, DeviceKind, Link, device_kind
from placement.errors import InputError


def test_the_kinds_that_are_promised_are_there():
    assert {"v100", "t4", "a100", "a100-80gb", "l4", "h100", "cpu"} <= set(KINDS)
    assert all(name == row.name for name, row in KINDS.items())


@pytest.mark.parametrize("name", sorted(KINDS))
def test_each_row_is_plausible_and_names_its_source(name):
    row = KINDS[name]
    assert "datasheet" in row.source
    assert 1e9 <= row.memory_bytes <= 1e12
    # FLOP per byte of memory traffic at the ridge of the roofline: from a CPU core to an H100.
    assert 5 < row.fp32_flops_per_s / row.memory_bytes_per_s < 150
    assert row.memory_bytes_per_s > row.node_link.bytes_per_s > row.network.bytes_per_s / 8
    assert row.network.latency_s > row.node_link.latency_s
    assert (row.fp16_flops_per_s or row.fp32_flops_per_s) >= row.fp32_flops_per_s


def test_known_peaks():
    assert device_kind("A100").peak_flops_per_s("bf16") == 312e12
    assert device_kind("v100").memory_bytes_per_s == 900e9
    assert device_kind("h100").peak_flops_per_s("fp16") == 989e12
    assert device_kind("a100-80gb").memory_bytes == 2 * device_kind("a100").memory_bytes


def test_newer_kinds_are_faster():
    order = ["cpu", "t4", "v100", "a100", "h100"]
    speeds = [KINDS[name].fp16_flops_per_s or KINDS[name].fp32_flops_per_s for name in order]
    assert speeds == sorted(speeds)


def test_unknown_kinds_and_dtypes_are_refused_in_one_line():
    with pytest.raises(InputError, match=r"^device kind 'tpu' is not in the table; known are a100, .*v100$"):
        device_kind("tpu")
    with pytest.raises(InputError, match=r"^device kind t4 has no bf16; it computes in fp16 or fp32$"):
        device_kind("t4").peak_flops_per_s("bf16")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Link(0, 1e-6), "link bytes_per_s is 0; it must be a finite number above 0"),
        (lambda: Link(1e9, float("nan")), "link latency_s is nan"),
        (lambda: Assumed(matmul_efficiency=1.2), "assumed matmul_efficiency is 1.2; a share is at most 1"),
        (lambda: Assumed(kernel_s=-1), "assumed kernel_s is -1"),
        (lambda: msgspec.structs.replace(KINDS["l4"], memory_bytes_per_s=-1), "l4: memory_bytes_per_s is -1"),
        (lambda: msgspec.structs.replace(KINDS["l4"], fp32_flops_per_s=0), "l4: fp32_flops_per_s is 0"),
    ],
)
def test_wrong_numbers_are_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make()


def test_a_kind_survives_a_file():
    row = device_kind("h100")
    plain = msgspec.json.encode(msgspec.to_builtins(row, enc_hook=int))
    again = msgspec.json.decode(plain, type=DeviceKind, dec_hook=lambda kind, value: kind(value))
    assert again == row
