"""The control plane of a running proxy, as commands ask it: found by flags, else by the settings."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import httpx

from proxy.commands.ending import WRONG_SETTINGS, end, settings_or_end
from proxy.keys import Right
from proxy.settings import Settings, url_at
from proxy.settings.values import checked_url

ANSWER_S = 30
# A long rollout is assembled before it is told.
ASSEMBLY_S = 600

Json: TypeAlias = dict[str, Any]


class BrokenOff(Exception):
    """A list ended before its end."""


@dataclass(frozen=True, slots=True)
class Control:
    """Where the control plane is, and the token that opens it."""

    url: str
    token: str
    socket: Path | None = None

    def ask(self, path: str, query: Json | None = None, *, patience_s: float = ANSWER_S) -> Json:
        """What the proxy answers, or the end with one line that says why."""
        with self._client(patience_s) as client:
            with self._reached():
                answer = client.get(self._address(path), params=query, headers=self._headers)
            return self._document(answer)

    def lines(self, path: str, query: Json | None = None, *, body: Json | None = None) -> Iterator[Json]:
        """The lines of a list as they come, of a POST where there is a body; BrokenOff where they stop too early."""
        with self._client(ASSEMBLY_S) as client:
            method = "GET" if body is None else "POST"
            asked = client.build_request(method, self._address(path), params=query, json=body, headers=self._headers)
            with self._reached():
                answer = client.send(asked, stream=True)
                if answer.status_code != httpx.codes.OK:
                    answer.read()
                    self._document(answer)
            try:
                yield from (json.loads(line) for line in answer.iter_lines() if line)
            except (httpx.HTTPError, ValueError) as error:
                raise BrokenOff(f"the proxy's answer broke off: {error}") from error
            finally:
                answer.close()

    def _client(self, patience_s: float) -> httpx.Client:
        transport = httpx.HTTPTransport(uds=str(self.socket)) if self.socket else None
        return httpx.Client(transport=transport, timeout=httpx.Timeout(patience_s, connect=ANSWER_S))

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """The end where no answer comes."""
        try:
            yield
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeEncodeError) as error:
            remedy = "start `rollpin serve`, or name another by --url"
            end(f"no answer from {self.socket or self.url}: {_cause(error)}; {remedy}")

    def _address(self, path: str) -> str:
        return self.url.rstrip("/") + path

    @property
    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"}

    def _document(self, answer: httpx.Response) -> Json:
        try:
            document = answer.json()
        except ValueError:
            end(f"{self.url} does not answer as Rollpin does (status {answer.status_code}); name another by --url")
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            end(f"{self.socket or self.url}: {_told(document)}; give --token, or run this where its secrets file is")
        if answer.status_code != httpx.codes.OK or not isinstance(document, dict):
            end(_told(document))
        return document


def find_control(url: str | None, token: str | None, right: Right = "read") -> Control:
    """The control plane that flags and settings name, with a token of this right; ends where they do not."""
    if url is not None:
        _check_url(url)
        if token is not None:
            return Control(url, token)
    settings = settings_or_end([], None, to_serve=False)
    token = token or _kept_token(settings, right)
    if url is not None:
        return Control(url, token)
    if settings.control_socket is not None:
        return Control("http://rollpin", token, settings.control_socket)
    return Control(_control_url(settings), token)


def _check_url(url: str) -> None:
    try:
        checked_url(url)
    except ValueError as error:
        end(f"--url: {error}", WRONG_SETTINGS)


def none_such(narrow: Json) -> str:
    """That no rollout is in the run and the group that a command was given."""
    where = " and ".join(f"{name} {value!r}" for name, value in narrow.items() if value is not None)
    return f"no rollout is in {where}: `rollpin rollouts list` tells which there are"


def _told(document: Any) -> str:
    match document:
        case {"error": {"message": str(message)}}:
            return message
    return f"not an answer of Rollpin: {str(document)[:200]}; --url names its control plane"


def _cause(error: Exception) -> str:
    """Why, without a system's number for it."""
    return re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__


def _control_url(settings: Settings) -> str:
    apart = settings.control_port is not None
    host, port = (settings.control_host, settings.control_port) if apart else (settings.host, settings.port)
    if not port:
        end("the port is picked at start: name the control plane by --url")
    return url_at(host, port)


def _kept_token(settings: Settings, right: Right) -> str:
    """A token that opens what is asked: of the settings, else of the secrets file."""
    able = {"read": (settings.read_token, settings.admin_token), "admin": (settings.admin_token,)}
    for secret in able[right]:
        if secret:
            return secret.get_secret_value()
    try:
        return str(json.loads(settings.secrets_file.read_text())[f"{right}_token"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = f"give --token or ROLLPIN_{right.upper()}_TOKEN, or run this where the proxy's is"
        end(f"no token: {_why_none(settings.secrets_file, error)}; {remedy}")


def _why_none(secrets: Path, error: Exception) -> str:
    """What keeps a token from being read out of the secrets file."""
    if isinstance(error, FileNotFoundError):
        return f"there is no {secrets} here"
    return f"{secrets} cannot be read ({error.strerror})" if isinstance(error, OSError) else f"{secrets} holds none"
