"""The command `rollpin`: start a proxy, and look at a running one."""

from importlib.metadata import version
from pathlib import Path
from textwrap import fill
from typing import Annotated, Literal

import typer
from rich.console import Console

from proxy.commands.control import find_control
from proxy.commands.ending import WRONG_SETTINGS, end, settings_or_end
from proxy.commands.flags import TEXT, Command, Token, Url
from proxy.commands.replay import replay
from proxy.commands.rescore import rescore
from proxy.commands.rollouts import rollouts
from proxy.commands.verify import verify
from proxy.settings_page import as_toml, flag_rows

HELP_WIDTH = 80
HELP_INDENT = " " * 6

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.add_typer(rollouts, name="rollouts")


def main() -> None:
    """Run the command line."""
    app(prog_name="rollpin")


def _show_version(wanted: bool) -> None:  # noqa: FBT001  typer's form of a callback
    if wanted:
        typer.echo(f"rollpin {version('rollpin')}")
        raise typer.Exit


@app.callback()
def rollpin(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """A proxy in front of SGLang and vLLM that makes agents' model calls trainable."""


# --- serve ------------------------------------------------------------------------------------------------------


@app.command(
    short_help="Run a proxy; every setting is a flag.",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def serve(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option(help="The settings file.")] = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="Show the settings and stop.")] = False,
    show_help: Annotated[bool, typer.Option("--help", help="Show this and stop.")] = False,
) -> None:
    """Run a proxy; every setting is a flag (see `rollpin serve --help`)."""
    if show_help:
        _print_serve_help()
        return
    settings = settings_or_end(context.args, config, to_serve=True)
    if print_config:
        typer.echo(as_toml(settings), nl=False)
        return
    from proxy.app import serve as run  # noqa: PLC0415  the other commands start faster without it

    raise typer.Exit(run(settings))


def _print_serve_help() -> None:
    typer.echo("Usage: rollpin serve [--config FILE] [--print-config] [FLAGS]\n")
    typer.echo("  Run a proxy. Flags win over ROLLPIN_… variables, these over rollpin.toml.\n")
    _print_flag("--config  path", "The settings file. [default: rollpin.toml, if it is there]")
    _print_flag("--print-config", "Show the settings that flags, variables and file make, secrets masked, and stop.")
    for row in flag_rows():
        _print_flag(row.flag, f"{row.description} [default: {row.default.strip('`')}]")


def _print_flag(flag: str, text: str) -> None:
    typer.echo(f"  {flag}")
    typer.echo(fill(text, HELP_WIDTH, initial_indent=HELP_INDENT, subsequent_indent=HELP_INDENT))


# --- check ------------------------------------------------------------------------------------------------------


@app.command(
    short_help="Find out what the engines are fit for, by experiment.",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def check(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option(help="The settings file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output instead.")] = False,
) -> None:
    """Find out by experiment what the engines of the settings are fit for.

    Every setting is a flag, as with `rollpin serve`: `rollpin check --engines URL` needs no file. Some hundreds of
    tokens are drawn from each engine.

    Status 0 where every check passes or warns, 1 where one fails, 2 where an engine could not be checked.
    """
    settings = settings_or_end(context.args, config, to_serve=True)
    from proxy.commands.check import check_engines  # noqa: PLC0415  the other commands start faster without it

    raise typer.Exit(check_engines(settings, Console(highlight=False), as_json=as_json))


# --- sim and demo -----------------------------------------------------------------------------------------------


@app.command()
def sim(
    kind: Annotated[Literal["sglang", "vllm"], typer.Option(help="Which engine it speaks like.")] = "sglang",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")] = 0,
    model: Annotated[str, typer.Option(help="Name of the model it serves.")] = "rollpin-sim",
    scenario: Annotated[str | None, typer.Option(help="A scripted agent: calculator, tools, or a file.")] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(metavar=TEXT, help="What goes wrong, such as 429, html, cut:3 or latency:0.5; may be repeated."),
    ] = None,
    every: Annotated[
        int | None, typer.Option(min=1, help="Faults hit every so many calls; else each of the first calls has one.")
    ] = None,
    token_delay_s: Annotated[float, typer.Option(min=0, help="Seconds that each token takes.")] = 0,
    max_model_len: Annotated[int, typer.Option(min=16, help="Context length.")] = 32768,
    deterministic: Annotated[bool, typer.Option(help="As SGLang: seeds count.")] = True,
    dev_mode: Annotated[bool, typer.Option(help="As vLLM: the development endpoints are there.")] = False,
) -> None:
    """Run a simulated engine alone: no model, no GPU, toy tokens."""
    from proxy.sim.command import SimOptions, serve_sim  # noqa: PLC0415  the other commands start faster without it

    options = SimOptions(
        kind, host, port, model, scenario, fault or (), every, token_delay_s, max_model_len, deterministic, dev_mode
    )
    try:
        raise typer.Exit(serve_sim(options, typer.echo))
    except (ValueError, OSError) as error:
        end(str(error), WRONG_SETTINGS)


@app.command()
def demo(
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of the proxy [default: 8080, or a free one].")
    ] = None,
    leave: Annotated[bool, typer.Option("--exit", help="Stop after the show instead of at Ctrl-C.")] = False,
) -> None:
    """See it all at work: proxy, simulated engine, agent.

    An agent runs twice as a group of four samples; then proxy and engine are yours until Ctrl-C.
    """
    from proxy.demo.command import run_demo  # noqa: PLC0415  the other commands start faster without it

    raise typer.Exit(run_demo(Console(), port=port, stay=not leave))


# --- what a running proxy holds ---------------------------------------------------------------------------------


@app.command(cls=Command, short_help="Trajectories of closed groups as training rows.")
def export(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="File to write: .jsonl, .ndjson or .parquet.")],
    url: Url = None,
    token: Token = None,
    run: Annotated[str | None, typer.Option(help="Only this run.")] = None,
    group: Annotated[str | None, typer.Option(help="Only this group.")] = None,
    rollout: Annotated[
        list[str] | None, typer.Option(metavar=TEXT, help="Only this rollout, open or closed; may be repeated.")
    ] = None,
    since: Annotated[str | None, typer.Option(help="Cursor of an earlier export: only what closed after it.")] = None,
    cursor_file: Annotated[
        Path | None, typer.Option(help="Go on from the cursor in this file, and leave the new one there.")
    ] = None,
    require_outcome: Annotated[
        bool, typer.Option("--require-outcome", help="Leave groups out until each rollout has an outcome.")
    ] = False,
    format_: Annotated[
        Literal["jsonl", "parquet"] | None, typer.Option("--format", help="By default as the file's suffix says.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it is there.")] = False,
) -> None:
    """Trajectories of closed groups as training rows, JSON Lines or Parquet."""
    from proxy.commands import export as work  # noqa: PLC0415  the other commands start faster without it

    if rollout and (run or group or since or cursor_file or require_outcome):
        end("--rollout: goes with none of --run, --group, --since, --cursor-file, --require-outcome", WRONG_SETTINGS)
    if since and cursor_file:
        end("--since: the cursor file says where to go on", WRONG_SETTINGS)
    asked = {"run": run, "group": group, "since": since or work.kept_cursor(cursor_file)}
    query = {name: value for name, value in asked.items() if value is not None}
    query |= {"require_outcome": "true"} if require_outcome else {}
    wanted = work.Wanted(out, work.format_of(out, format_), tuple(rollout or ()), query, cursor_file, overwrite)
    raise typer.Exit(work.export(find_control(url, token), wanted))


app.command(cls=Command, short_help="Draw recorded calls again: do the same tokens come?")(replay)
app.command(cls=Command, short_help="Score recorded tokens under the weights of now.")(rescore)
app.command(cls=Command, short_help="Hold a store against its own promises, offline.")(verify)
