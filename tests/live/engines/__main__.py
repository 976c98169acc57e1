"""The kit from a shell: `python -m tests.live.engines install|models|start`."""

import argparse
import signal
import sys
import time

from tests.live.engines.install import InstallError, ensure_installed
from tests.live.engines.models import NAMES, ensure_model
from tests.live.engines.places import KINDS
from tests.live.engines.start import Engine, EngineDidNotStart, running

LOOK_EVERY_S = 0.5


def main(arguments: list[str] | None = None) -> int:
    """Do the one thing asked for."""
    asked = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        return asked.do(asked)
    except KeyboardInterrupt:
        return 0
    except (InstallError, EngineDidNotStart) as error:
        print(error, file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """The commands and what they take."""
    root = argparse.ArgumentParser(prog="python -m tests.live.engines", description=__doc__)
    commands = root.add_subparsers(required=True)
    install = commands.add_parser("install", help="install one engine, or all")
    install.add_argument("kind", choices=[*KINDS, "all"], nargs="?", default="all")
    install.set_defaults(do=do_install)
    models = commands.add_parser("models", help="make the models that are missing, and say where all of them are")
    models.set_defaults(do=do_models)
    start = commands.add_parser("start", help="start an engine and keep it until Ctrl-C")
    start.add_argument("kind", choices=KINDS)
    start.add_argument("--port", type=int, help="any free one unless given")
    start.add_argument("--model", choices=NAMES, default="tiny")
    start.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="for the engine; must come last")
    start.set_defaults(do=do_start)
    return root


def do_install(asked: argparse.Namespace) -> int:
    """Install, and say where."""
    for kind in KINDS if asked.kind == "all" else [asked.kind]:
        print(f"{kind}\t{ensure_installed(kind)}")
    return 0


def do_models(_asked: argparse.Namespace) -> int:
    """Make the models, and say where they are."""
    for name in NAMES:
        print(f"{name}\t{ensure_model(name)}")
    return 0


def do_start(asked: argparse.Namespace) -> int:
    """Hold one engine in the foreground."""
    began = time.monotonic()
    with running(asked.kind, asked.model, flags=asked.flags, port=asked.port) as engine:
        took_s = time.monotonic() - began
        print(f"ready {engine.url} {engine.served_name} pid {engine.pid} after {took_s:.0f} s", flush=True)
        return hold(engine)


def hold(engine: Engine) -> int:
    """Wait for the engine's end, which nobody wants."""
    while engine.is_alive():
        time.sleep(LOOK_EVERY_S)
    print(engine.log_tail(), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
