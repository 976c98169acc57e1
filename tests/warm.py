"""Imported by the process that proxies are forked from: one start and stop, so that what is read once has been read."""

import asyncio
import tempfile
from pathlib import Path

import pytest  # noqa: F401  what is forked imports the tests that it comes from

from proxy.app import run_proxy
from tests.fakes import FakeEngine
from tests.served import settings_for

with tempfile.TemporaryDirectory() as folder, FakeEngine("vllm") as engine:
    asyncio.run(run_proxy(settings_for(Path(folder), engine.url), lambda server, _wiring: server.stop()))
