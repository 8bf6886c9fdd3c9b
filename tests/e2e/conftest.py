"""A real server in a process of its own, with tiny real models."""

import pytest

from tests.e2e.server import Server, write_config


@pytest.fixture(scope="session")
def tiny_models(made):
    """A directory with a chat, a MoE, an embedding and a classifying model."""
    return made[0]


@pytest.fixture(scope="module")
def server(tiny_models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    with Server(write_config(folder, tiny_models)) as running:
        yield running
