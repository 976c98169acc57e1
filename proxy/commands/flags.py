"""What the command line of several commands has in common."""

from typing import Annotated, Any

import typer
from typer.core import TyperCommand


class Command(TyperCommand):
    """A command with arguments, whose usage line has them as people write them: ROLLOUT_ID, not {ROLLOUT_ID}."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Typer's, without its braces around what is required."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]


# Of options that may be repeated; what typer shows is Python's name of the list.
TEXT = "<str>"

Url = Annotated[str | None, typer.Option(help="Control plane of the proxy; by default where the settings put it.")]
Token = Annotated[
    str | None, typer.Option(help="Read or admin token; by default that of the settings or the secrets file.")
]
AdminToken = Annotated[
    str | None, typer.Option(help="Admin token; by default that of the settings or the secrets file.")
]
AsDocument = Annotated[bool, typer.Option("--json", help="One JSON document on standard output instead.")]
AsLines = Annotated[bool, typer.Option("--json", help="Lines of JSON on standard output instead.")]
