"""URL and headers of a request are bounded, whoever sends them."""

import socket
from collections.abc import Iterator

import httpx
import pytest

from proxy.headers import MOST_HEAD_BYTES, MOST_KEPT_BYTES
from tests.served import ServedProxy, served, settings_for

NO_ENGINE = "http://127.0.0.1:1"
PAGE = b"x" * 65536


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedProxy]:
    with served(settings_for(tmp_path_factory.mktemp("proxy"), NO_ENGINE)) as running:
        yield running


def long_headers(size: int) -> dict[str, str]:
    """Several, as a cookie jar that grows has them."""
    return {f"x-part-{place}": "x" * (size // 4) for place in range(4)}


def connected(proxy: ServedProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.wiring.data_port), timeout=60)


def is_hung_up(line: socket.socket) -> bool:
    """Whether the other end closed it, whatever it had to say before."""
    try:
        while line.recv(65536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/v1/chat/completions", ("error", "code", "headers_too_large")),
        ("/rollouts", ("error", "code", "headers_too_large")),
        ("/v1/messages", ("error", "type", "invalid_request_error")),
    ],
)
def test_too_many_headers_are_a_431_in_the_callers_form(
    proxy: ServedProxy, path: str, told: tuple[str, str, str]
) -> None:
    """Also for a client that is still sending a body that no one will read; nothing is opened or asked."""
    answer = httpx.post(proxy.url + path, headers=long_headers(MOST_HEAD_BYTES), content=PAGE * 40)

    outer, inner, value = told
    assert (answer.status_code, answer.headers["x-should-retry"]) == (431, "false")
    assert answer.json()[outer][inner] == value
    assert str(MOST_HEAD_BYTES) in answer.json()["error"]["message"]


def test_a_long_url_counts_as_well(proxy: ServedProxy) -> None:
    """The path, and what stands behind it."""
    half = MOST_HEAD_BYTES // 2
    for url in ("/" + "x" * half, "/v1/models?" + "x" * half):
        assert httpx.get(proxy.url + url, headers=long_headers(half - 1024)).status_code != 431
        assert httpx.get(proxy.url + url, headers=long_headers(half)).status_code == 431


def test_headers_within_the_bound_are_taken(proxy: ServedProxy) -> None:
    """The bound is far from what any harness sends, and the connection is good for the next request."""
    with httpx.Client(base_url=proxy.url) as client:
        answers = [client.get("/healthz", headers=long_headers(MOST_HEAD_BYTES - 1024)) for _ in range(40)]

    assert {answer.status_code for answer in answers} == {200}


@pytest.mark.parametrize(
    "beginning",
    [
        b"GET /healthz HTTP/1.1\r\nx-endless: ",
        b"GET /",
        b"POST /v1/chat/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nx-trailer: ",
    ],
    ids=["a header", "a url", "a trailer"],
)
def test_what_has_no_end_ends_the_connection(proxy: ServedProxy, beginning: bytes) -> None:
    """Before it fills the memory."""
    with connected(proxy) as line:
        line.sendall(beginning)
        sent = 0
        try:
            while sent < 100 * MOST_KEPT_BYTES:
                sent += line.send(PAGE)
        except ConnectionError:
            pass
        assert sent < 100 * MOST_KEPT_BYTES
        assert is_hung_up(line)


def test_a_body_in_small_pieces_is_no_header(proxy: ServedProxy) -> None:
    """However much of it there is."""
    pieces = (b"x" * 1000 for _ in range(3 * MOST_KEPT_BYTES // 1000))
    answer = httpx.post(f"{proxy.url}/v1/chat/completions", content=pieces)

    assert answer.status_code == 401
