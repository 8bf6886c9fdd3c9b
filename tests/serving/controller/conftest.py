import pytest

from router.warm_up import warm_up


@pytest.fixture(autouse=True, scope="session")
def _compiled():
    """Compiling takes longer than what is measured here may take."""
    warm_up()
