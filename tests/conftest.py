"""What every test shares."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """Servers and stores run on asyncio alone."""
    return "asyncio"
