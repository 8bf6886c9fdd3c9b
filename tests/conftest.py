"""What tests of several folders share: the small models at a fraction of their size, made once; and who runs alone."""

import pytest

SIDE_BY_SIDE = (
    "tests/deploy/",
    "tests/e2e/test_bad_input.py",
    "tests/e2e/test_cli.py",
    "tests/loadgen/",
    "tests/moe/",
    "tests/placement/",
    "tests/reports/",
    "tests/router/",
    "tests/serving/attention/",
    "tests/serving/check/",
    "tests/serving/engine/",
    "tests/serving/models/",
    "tests/serving/profiler/test_cli.py",
    "tests/serving/profiler/test_fit.py",
    "tests/serving/profiler/test_points.py",
    "tests/serving/profiler/test_scaling.py",
    "tests/serving/sampling/",
    "tests/serving/small_models/",
    "tests/serving/text/",
    "tests/serving/test_config.py",
    "tests/test_benchmarks.py",
    "tests/test_suite.py",
    "tests/training/test_",
)
"""Tests that no clock judges: `make test` runs them on both cores. All others are `alone`, after these, one by one."""
ALONE = (
    "tests/loadgen/test_load_command.py",
    "tests/loadgen/test_locust.py",
    "tests/loadgen/test_open_loop.py",
    "tests/moe/test_parallel_processes.py",
    "tests/moe/test_training_processes.py",
)
"""Of those, the files that count seconds or start processes that wait for each other; single tests are marked so."""


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: not item.nodeid.startswith("tests/test_benchmarks.py"))  # what takes longest goes first
    for item in items:
        if not item.nodeid.startswith(SIDE_BY_SIDE) or item.nodeid.startswith(ALONE):
            item.add_marker("alone")


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """A small library of Python to read."""
    from tests.serving.small_models.tiny import copy_library

    return copy_library(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="session")
def made(tmp_path_factory, library):
    """(directory with a chat, a MoE, an embedding and a classifying model, outcomes by name); nobody changes them."""
    from tests.serving.small_models.tiny import make_tiny

    directory = tmp_path_factory.mktemp("made")
    return directory, make_tiny(directory, library)
