"""What engines say of themselves, asked over real sockets without generating a token."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from proxy.engine.look import Look
from proxy.engine.pool import Pool
from proxy.engine.upstream import Upstream
from proxy.errors import EngineUnready
from proxy.settings import EngineSettings
from tests.fakes import FakeEngine
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    made = Upstream(connect_s=PATIENCE_S, silence_s=PATIENCE_S, probe_s=PATIENCE_S, reply_bytes=1_000_000)
    yield made
    await made.aclose()


@contextmanager
def stub(answers: dict[str, tuple[int, bytes]]) -> Iterator[str]:
    """A server with these answers by path, and 404 for all else."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers.get(self.path, (404, b"{}"))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815  http.server's name

        def log_message(self, *_: Any) -> None:
            """Nothing to say."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


async def test_vllm_tells_version_model_context_and_vocabulary(upstream: Upstream) -> None:
    """The vocabulary's size comes out of the refusal of an impossible bias."""
    with FakeEngine("vllm", model="tiny", max_model_len=2048) as engine:
        facts = await Look(upstream, engine.url, None).facts("auto")

    assert (facts.kind, facts.version, facts.model) == ("vllm", "0.32.0", "tiny")
    assert (facts.context_length, facts.vocabulary, facts.deterministic) == (2048, 300, None)
    assert facts.honours_seeds


@pytest.mark.parametrize("deterministic", [True, False])
async def test_sglang_tells_whether_it_is_deterministic(upstream: Upstream, *, deterministic: bool) -> None:
    """Without the mode it ignores seeds."""
    with FakeEngine("sglang", deterministic=deterministic, max_model_len=2048) as engine:
        facts = await Look(upstream, engine.url, None).facts("auto")

    assert (facts.kind, facts.version, facts.context_length, facts.vocabulary) == ("sglang", "0.5.23", 2048, 300)
    assert (facts.deterministic, facts.honours_seeds) == (deterministic, deterministic)
    assert facts.details["weight_version"] == "default"


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_a_probe_generates_nothing(upstream: Upstream, kind: Any) -> None:
    """No request reaches the sampler."""
    with FakeEngine(kind) as engine:
        await Look(upstream, engine.url, None).facts("auto")

    assert engine.requests == []


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_an_engine_that_reads_prompt_ids_shows_it_in_a_refusal(upstream: Upstream, kind: Any) -> None:
    """Malformed ids are noticed before an impossible bias is."""
    with FakeEngine(kind) as engine:
        facts = await Look(upstream, engine.url, None).facts("auto")

    assert facts.takes_exact_prompts is True


@pytest.mark.parametrize(
    ("refusal", "verdict"),
    [
        ((400, b'{"error": {"message": "out-of-vocab token ids. Vocabulary size: 1024"}}'), False),
        ((500, b'{"error": {"message": "prompt_token_ids"}}'), None),
        ((200, b'{"choices": []}'), None),
    ],
    ids=["ids passed by", "broken", "nothing checked"],
)
async def test_an_engine_that_passes_prompt_ids_by_is_known(
    upstream: Upstream, refusal: tuple[int, bytes], verdict: object
) -> None:
    """Older servers, and routers, drop the field without a word; what is no refusal proves nothing."""
    models = b'{"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 10}]}'
    with stub({"/v1/models": (200, models), "/v1/chat/completions": refusal}) as url:
        facts = await Look(upstream, url, None).facts("auto")

    assert facts.takes_exact_prompts is verdict


async def test_a_fingerprint_is_of_kind_model_tokenizer_and_template(upstream: Upstream) -> None:
    """Two servers of one model share it; another model or kind has another."""

    async def look(kind: Any, **setup: Any) -> str | None:
        with FakeEngine(kind, **setup) as engine:
            return (await Look(upstream, engine.url, None).facts("auto")).fingerprint

    vllm = await look("vllm")

    assert vllm == await look("vllm", max_model_len=2048)
    assert len({vllm, await look("vllm", model="other"), await look("sglang"), None}) == 4


async def test_another_template_is_another_fingerprint(upstream: Upstream) -> None:
    """Also where only one conversation of the battery is rendered otherwise, or refused."""
    models = b'{"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 10}]}'
    told = []
    for answer in ((200, b'{"tokens": [1, 2]}'), (200, b'{"tokens": [1, 3]}'), (400, b"{}"), (404, b"{}")):
        with stub({"/v1/models": (200, models), "/tokenize": answer}) as url:
            told.append((await Look(upstream, url, None).facts("auto")).fingerprint)

    assert len(set(told)) == 4
    assert told[3] is None, "what cannot be asked is not known"


async def test_another_kind_than_configured_is_told(upstream: Upstream) -> None:
    """A wrong setting is found before the first call."""
    with FakeEngine("vllm") as engine, pytest.raises(EngineUnready, match="as sglang but looks like vllm"):
        await Look(upstream, engine.url, None).facts("sglang")


@pytest.mark.parametrize(
    "answers",
    [
        {},
        {"/v1/models": (200, b"<html>hello</html>")},
        {"/v1/models": (200, b'{"data": []}')},
        {"/v1/models": (200, b'{"data": ["x"]}')},
        {"/v1/models": (200, b"[]")},
        {"/v1/models": (500, b"{}")},
        {"/v1/models": (200, b'{"data": [{"id": "m", "owned_by": "somebody"}]}')},
        {"/v1/models": (200, b'{"data": [{"owned_by": "vllm"}]}')},
        {"/v1/models": (200, b'{"data": [{"id": "m", "owned_by": "sglang"}]}')},
        {"/v1/models": (200, b'{"data": [{"id": "m", "owned_by": "sglang"}]}'), "/server_info": (200, b"[]")},
    ],
    ids=["404", "html", "no model", "no object", "a list", "500", "a stranger", "no name", "a router", "odd info"],
)
async def test_whoever_is_no_engine_is_unready_with_a_reason(
    upstream: Upstream, answers: dict[str, tuple[int, bytes]]
) -> None:
    """Never a crash: the pool tells the reason and looks again."""
    with stub(answers) as url, pytest.raises(EngineUnready):
        await Look(upstream, url, None).facts("auto")


async def test_an_older_sglang_is_asked_by_its_older_paths(upstream: Upstream) -> None:
    """And its bias check, which once killed the scheduler, is left alone: the vocabulary stays unknown."""
    models = b'{"data": [{"id": "m", "owned_by": "sglang", "max_model_len": 10}]}'
    info = b'{"version": "0.5.17", "enable_deterministic_inference": true}'
    answers = {
        "/v1/models": (200, models),
        "/get_server_info": (200, info),
        "/get_model_info": (200, b'{"weight_version": "3"}'),
    }
    with stub(answers) as url:
        facts = await Look(upstream, url, None).facts("auto")

    assert (facts.version, facts.vocabulary, facts.deterministic) == ("0.5.17", None, True)
    assert facts.details["weight_version"] == "3"


async def test_nobody_at_the_address_is_a_reason_too(upstream: Upstream) -> None:
    """In plain words, with what to do: no name of an exception."""
    with stub({}) as url:
        pass
    told = "^the engine cannot be reached: Connection refused; start it, or mend its url$"
    with pytest.raises(EngineUnready, match=told):
        await Look(upstream, url, None).facts("auto")


@pytest.mark.parametrize(("status", "told"), [(401, "give the engine's api_key"), (404, "without its /v1")])
async def test_an_engine_that_does_not_list_its_model_is_told_with_what_to_do(
    upstream: Upstream, status: int, told: str
) -> None:
    """A key that is missing, a url that leads past it."""
    with stub({"/v1/models": (status, b"{}")}) as url, pytest.raises(EngineUnready, match=f"answered {status}.*{told}"):
        await Look(upstream, url, None).facts("auto")


async def test_a_pool_finds_its_engines_and_loses_the_dead(upstream: Upstream) -> None:
    """One look finds, a later one tells who no longer answers."""
    with FakeEngine("vllm") as engine:
        pool = Pool([EngineSettings(url=engine.url)], upstream, require_replayable=False)
        await pool.look()
        assert pool.engines[0].problem is None
    await pool.look()

    assert pool.engines[0].problem is not None
    assert pool.engines[0].ref is not None


@pytest.mark.parametrize("put_off", ["/version", "/server_info", "/tokenize"])
async def test_an_engine_too_busy_to_tell_is_not_taken_for_another(upstream: Upstream, put_off: str) -> None:
    """A fingerprint or a mode that could not be had is none that changed."""
    told = {"/v1/models": (200, b'{"data": [{"id": "tiny", "owned_by": "vllm"}]}')}
    with stub({**told, put_off: (503, b"{}")}) as url, pytest.raises(EngineUnready, match="answered 503"):
        await Look(upstream, url, None).facts("auto")
