"""Processes of the image, run and probed as an orchestrator would."""

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.deploy.building import Image
from tests.patience import PATIENCE_S


@contextmanager
def process(image: Image, *command: str, **environment: str) -> Iterator["subprocess.Popen[str]"]:
    """A process in the image; killed at the end of the block if it is not over by then."""
    running = subprocess.Popen(
        command,
        env=image.environment(**environment),
        cwd=image.working_folder(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield running
    finally:
        running.kill()
        running.wait()
        if running.stdout:
            running.stdout.close()


def rollpin(image: Image, *arguments: str) -> list[str]:
    """ENTRYPOINT, found on the image's PATH, with CMD or other arguments."""
    name, *rest = image.last["ENTRYPOINT"].words()
    found = shutil.which(name, path=image.environment()["PATH"])
    assert found, name
    return [found, *rest, *(arguments or image.last["CMD"].words())]


def probe(image: Image, path: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The image's own health probe; asked again, as orchestrators do, where a busy machine outlasts its patience."""
    while (done := image.run(["rollpin-probe", path], **environment)).stdout.endswith("timed out\n"):
        pass
    return done


def wait_for(image: Image, path: str, running: "subprocess.Popen[str]", **environment: str) -> None:
    """Probe until it is well, as an orchestrator would."""
    deadline = time.monotonic() + PATIENCE_S
    while (done := probe(image, path, **environment)).returncode:
        assert running.poll() is None, running.communicate()[0]
        assert time.monotonic() < deadline, done.stdout + done.stderr
        time.sleep(0.1)


def stop(running: "subprocess.Popen[str]") -> int:
    """STOPSIGNAL, and the exit status."""
    running.send_signal(signal.SIGTERM)
    output, _ = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 0, output
    return running.returncode


def end_of(running: "subprocess.Popen[str]") -> str:
    """What a process wrote last; ends it."""
    running.kill()
    return running.communicate()[0][-4000:]
