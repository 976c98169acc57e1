"""The kit from a shell: `python -m tests.harnesses install [NAME...]` and `python -m tests.harnesses page`."""

import argparse
import sys

from tests.harnesses.kit.install import InstallError, ensure_all
from tests.harnesses.page import page
from tests.harnesses.roster import ROSTER


def main(arguments: list[str] | None = None) -> int:
    """Do the one thing asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.harnesses", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    install = commands.add_parser("install", help="install harnesses, all unless named")
    install.add_argument("names", nargs="*", choices=[*(harness.name for harness in ROSTER), []], metavar="NAME")
    commands.add_parser("page", help="print docs/harnesses.md")
    asked = parser.parse_args(arguments)
    if asked.command == "page":
        print(page(), end="")
        return 0
    try:
        ensure_all(harness.package for harness in ROSTER if not asked.names or harness.name in asked.names)
    except InstallError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
