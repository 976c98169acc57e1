"""What single token ids say, asked of an engine that has the tokenizer: for people to read, never for training."""

import asyncio
from collections.abc import Collection

from proxy.engine.answer import decoded_text
from proxy.engine.pool import DIALECTS
from proxy.engine.upstream import Upstream
from proxy.errors import EngineFault
from proxy.model import EngineRef

# Questions at once: an engine's tokenizer does one after another anyway.
AT_ONCE = 8


async def texts_of(upstream: Upstream, engine: EngineRef, ids: Collection[int]) -> dict[int, str]:
    """The text of each id by itself, special tokens included; those that the engine would not tell are left out."""
    room = asyncio.Semaphore(AT_ONCE)

    async def ask(token: int) -> str | None:
        async with room:
            return await _text_of(upstream, engine, token)

    found = await asyncio.gather(*map(ask, ids))
    return {token: text for token, text in zip(ids, found, strict=True) if text is not None}


async def _text_of(upstream: Upstream, engine: EngineRef, token: int) -> str | None:
    request = DIALECTS[engine.facts.kind].decode(engine, (token,))
    try:
        answer = await upstream.question(engine.url, request.path, request.body, api_key=engine.api_key)
    except EngineFault:
        return None
    return decoded_text(answer)
