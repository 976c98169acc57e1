"""Flags that several commands have in common."""

from typing import Annotated

import typer

Url = Annotated[str | None, typer.Option(help="Control plane of the proxy; by default where the settings put it.")]
Token = Annotated[
    str | None, typer.Option(help="Read or admin token; by default that of the settings or the secrets file.")
]
AdminToken = Annotated[
    str | None, typer.Option(help="Admin token; by default that of the settings or the secrets file.")
]
AsDocument = Annotated[bool, typer.Option("--json", help="One JSON document on standard output instead.")]
AsLines = Annotated[bool, typer.Option("--json", help="Lines of JSON on standard output instead.")]
