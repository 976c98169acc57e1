"""The length of a prompt, as the engine's own template and tokenizer make it."""

import json

from proxy.engine.dialect import engine_messages
from proxy.engine.pool import DIALECTS
from proxy.engine.refusal import refused
from proxy.errors import EngineFault
from proxy.model import Ask
from proxy.request.senses import refuse_unseen
from proxy.wiring import Wiring


async def count_prompt(ask: Ask, wiring: Wiring) -> int:
    """Tokens that the engine's template makes of this request; raises EngineFault where it does not tell."""
    profile = wiring.profiles.of_rollout(ask.identity.rollout)
    engine = wiring.pool.choose(ask.identity.rollout_id, profile)
    refuse_unseen(ask, engine.facts)
    dialect = DIALECTS[engine.facts.kind]
    request = dialect.render(ask, engine, engine_messages(ask, dialect))
    answer = await wiring.upstream.question(engine.url, request.path, request.body, api_key=engine.api_key)
    if answer.status != 200:
        raise refused(answer.status, json.dumps(answer.body).encode())
    count = answer.body.get("count") if isinstance(answer.body, dict) else None
    if type(count) is not int:
        raise EngineFault("engine_malformed", 502, "the engine did not tell how long the prompt is")
    return count
