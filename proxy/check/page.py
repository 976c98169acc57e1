"""The table of checks in docs/engines.md: `python -m proxy.check.page` prints it."""

from proxy.check.checks import CHECKS, Check

BEGIN, END = "<!-- checks -->", "<!-- end of checks -->"


def table() -> str:
    """A row for each check, in the order in which they are made."""
    head = "| check | asks | where it does not pass | mended by |\n|--|--|--|--|"
    return "\n".join([head, *(_row(check) for check in CHECKS)])


def _row(check: Check) -> str:
    remedies = dict.fromkeys(check.remedies.values())
    told = "; ".join(remedies)
    return f"| `{check.name}` | {check.asks} | {check.means} | {told} |"


if __name__ == "__main__":
    print(table())  # noqa: T201  it is what this is for
