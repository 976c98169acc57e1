"""What is wrong with settings, told to whoever wrote them: one line for each fault, and no secret in it."""

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from proxy.settings.values import SECRETS


def faults(error: ValidationError, noun: str = "setting") -> list[str]:
    """One clear line per fault: where, what is wrong, and what stood there (secrets aside)."""
    return [line for item in error.errors() for line in _fault(item, noun)]


def _fault(item: ErrorDetails, noun: str) -> list[str]:
    where = ".".join(str(part) for part in item["loc"])
    message = str(item["msg"]).removeprefix("Value error, ")
    if not where:
        return message.split("\n")
    if item["type"] == "extra_forbidden":
        return [f"{where}: no such {noun}"]
    shown = item.get("input")
    if isinstance(shown, str | int | float) and repr(shown) not in message and not _may_hold_a_secret(where):
        return [f"{where}: {message} (got {shown!r:.80})"]
    return [f"{where}: {message}"]


def _may_hold_a_secret(where: str) -> bool:
    """Whether what stood there is better not shown: a secret, or what may carry one, as a URL may a password."""
    last = where.rpartition(".")[2]
    return last in {*SECRETS, "engines", "store"} or last.endswith("url")
