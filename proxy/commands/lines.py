"""Lines of a report that stay under their indent where the terminal is narrow."""

from textwrap import wrap

from rich.console import Console

INDENT = "  "


def indented(console: Console, text: str) -> None:
    """One line of a report; what does not fit goes on below it, further in."""
    lines = wrap(
        text,
        console.width,
        initial_indent=INDENT,
        subsequent_indent=INDENT * 2,
        break_on_hyphens=False,
    )
    console.print("\n".join(lines), markup=False, highlight=False)
