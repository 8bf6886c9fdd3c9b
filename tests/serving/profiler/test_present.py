"""GPUs of this machine, as the drivers of their makers show them."""

import pytest

from serving.profiler import present
from serving.profiler.present import count_gpus, machine_facts


@pytest.fixture(autouse=True)
def bare(tmp_path, monkeypatch):
    """A machine without drivers, and nothing hidden."""
    monkeypatch.setattr(present, "_NVIDIA", tmp_path / "nvidia")
    monkeypatch.setattr(present, "_AMD", tmp_path / "amd")
    monkeypatch.setattr(present, "_has_hip", lambda: True)
    for name in present._SHOWN_BY:
        monkeypatch.delenv(name, raising=False)


def make_amd(tmp_path):
    """A processor and three GPUs, of which one is not for this process."""
    for number, text in enumerate(("cpu_cores_count 64\nsimd_count 0\n", *[GPU] * 2, "")):
        node = tmp_path / "amd" / str(number)
        node.mkdir(parents=True)
        (node / "properties").write_text(text)


GPU = "cpu_cores_count 0\nsimd_count 1216\ngfx_target_version 90402\n"


def test_amd_gpus_are_counted(tmp_path, monkeypatch):
    assert count_gpus() == 0
    make_amd(tmp_path)
    assert count_gpus() == 2
    assert machine_facts("cuda")["device"] == "AMD gfx942"
    monkeypatch.setattr(present, "_has_hip", lambda: False)
    assert count_gpus() == 0


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"])
def test_those_that_are_hidden_are_not(name, tmp_path, monkeypatch):
    make_amd(tmp_path)
    monkeypatch.setenv(name, "1")
    assert count_gpus() == 1
    monkeypatch.setenv(name, "")
    assert count_gpus() == 0


def test_nvidias_gpus_are_counted(tmp_path, monkeypatch):
    for number in range(2):
        folder = tmp_path / "nvidia" / f"0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text("Model: \t\t NVIDIA A100\n")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0")
    assert count_gpus() == 2
    assert machine_facts("cuda")["device"] == "NVIDIA A100"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert count_gpus() == 1


def test_steppings_are_named_as_compilers_do():
    assert [present._gfx(version) for version in (90402, 90010, 90006)] == ["gfx942", "gfx90a", "gfx906"]
