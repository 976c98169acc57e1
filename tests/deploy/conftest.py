"""The image, made once for all tests that run it."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.building import Image, build

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session", params=["copied", pytest.param("by_pip", marks=pytest.mark.long)])
def image(request: pytest.FixtureRequest) -> Iterator[Image]:
    """The image's content, its dependencies copied from here or installed by pip as the Dockerfile says."""
    with tempfile.TemporaryDirectory(prefix="rp-") as folder:
        yield build(ROOT, Path(folder), by_pip=request.param == "by_pip")
