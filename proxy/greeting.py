"""What a proxy that listens tells whoever started it, and what to do next: a page on a terminal, else one event."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import wrap

import structlog

from proxy.settings import Settings, url_at
from proxy.wiring import Wiring

WIDTH = 80
PAGES = ("docs/control-plane.md", "docs/harnesses.md")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Greeting:
    """A proxy that listens."""

    base_url: str
    """Of any rollout."""
    control: str
    """URL of the control plane, or the path of its socket."""
    engines: tuple[str, ...]
    waiting_for: tuple[str, ...]
    """Engines that get no calls, each with the reason."""
    secrets: str
    """Where the admin token is."""
    create: str
    """The shell's line that opens a rollout; it expects the admin token in ADMIN."""

    @property
    def is_ready(self) -> bool:
        """Whether a call would be answered now."""
        return bool(self.engines)


def is_watched(settings: Settings) -> bool:
    """Whether a person reads what is told."""
    return settings.log_format == "console" and sys.stderr.isatty()


def greet(wiring: Wiring) -> None:
    """Tell it in the form that fits: people read a terminal, programs a log."""
    told = greeting_of(wiring)
    if is_watched(wiring.settings):
        if wiring.settings.log_level in {"debug", "info"}:
            sys.stderr.write("\n".join((*lines_of(told), "")))
    elif told.is_ready:
        log.info("ready", **_fields(told))
    else:
        log.warning("listening, and no engine is ready yet", waiting_for=told.waiting_for, **_fields(told))


def greeting_of(wiring: Wiring) -> Greeting:
    """From what is bound, and what is known of the engines."""
    settings = wiring.settings
    data = settings.public_url or url_at(settings.host, wiring.data_port)
    return Greeting(
        base_url=f"{data}/rollouts/ROLLOUT_ID/v1",
        control=wiring.control_at,
        engines=tuple(_engines(wiring)),
        waiting_for=tuple(f"{one.name} {one.url}: {one.problem}" for one in wiring.pool.engines if one.problem),
        secrets=_secrets(settings),
        create=_create(wiring.control_at),
    )


def lines_of(told: Greeting) -> Iterator[str]:
    """For people; what is to be copied stands on a line of its own."""
    yield ""
    yield (
        "Rollpin is ready." if told.is_ready else "Rollpin listens, and waits for an engine: calls get 503 until then."
    )
    yield from _row("base URL", told.base_url)
    yield from _row("Anthropic", told.base_url.removesuffix("/v1"))
    yield from _row("control", told.control)
    for engine in told.engines:
        yield from _row("engine", engine)
    for engine in told.waiting_for:
        yield from _row("waiting", engine)
    yield from _row("ADMIN", told.secrets)
    yield "Open a rollout; the answer holds the base URL and the key for its harness:"
    yield f"  {told.create}"
    yield f"Read on in {' and '.join(PAGES)}. Ctrl-C stops."
    yield ""


def _row(name: str, text: str) -> list[str]:
    """Addresses and paths are copied, so none is cut."""
    first = f"  {name:<11}"
    rest = " " * len(first)
    return wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def _engines(wiring: Wiring) -> Iterator[str]:
    if wiring.cassette:
        yield f"none: run {wiring.cassette.run!r} is played from its records"
        return
    for one in wiring.pool.engines:
        if one.ref and one.is_open:
            yield f"{one.name} {one.url}: {one.ref.facts.kind} {one.ref.facts.version}, {one.ref.facts.model}"


def _secrets(settings: Settings) -> str:
    if settings.admin_token:
        return "admin_token of the settings"
    return f"admin_token in {settings.secrets_file.resolve()}"


def _create(control: str) -> str:
    is_url = control.startswith("http://")
    where = f"{control}/rollouts" if is_url else f"--unix-socket {control} http://rollpin/rollouts"
    return f"curl -d '{{}}' -H \"Authorization: Bearer $ADMIN\" {where}"


def _fields(told: Greeting) -> dict[str, object]:
    return {
        "base_url": told.base_url,
        "control": told.control,
        "engines": told.engines,
        "secrets": told.secrets,
        "next": f"open a rollout by POST /rollouts at {told.control} with the admin token",
        "pages": PAGES,
    }
