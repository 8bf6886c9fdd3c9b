"""What tests of several folders share: the small models at a fraction of their size, made once."""

import pytest


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
