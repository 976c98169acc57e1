"""The assistant message as the client gets it, which is what it will echo.

Tool-call ids are derived from who asks and what, not taken from the engine: a rerun shows the client the same ids, and
parallel sub-agents, whose later turns may be identical to the byte, never share one.
"""

from proxy.canonical import digest
from proxy.model import Api, JsonObject, Plan

TOOL_CALL_MARK = "rollpin-tool-call-1"
TOOL_CALL_ID_DIGITS = 24
TOOL_CALL_PREFIX: dict[Api, str] = {
    "chat": "call_",
    "responses": "call_",
    "completions": "call_",
    "messages": "toolu_",
}


def tool_call_id(plan: Plan, index: int) -> str:
    """The id of the reply's tool call at `index`, the same in every rerun: 24 hex digits behind the API's prefix."""
    who, seed = plan.ask.identity.rollout, plan.seed
    drawn = [
        TOOL_CALL_MARK,
        who.group,
        who.sample,
        who.attempt,
        plan.ask.conversation.context,
        seed.occurrence,
        seed.choice,
        index,
    ]
    return TOOL_CALL_PREFIX[plan.ask.api] + digest(drawn).removeprefix("sha256:")[:TOOL_CALL_ID_DIGITS]


def client_message(said: JsonObject, plan: Plan, reasoning_field: str) -> JsonObject:
    """An assistant message of the engine's (reasoning under `reasoning`) under the client's names and derived ids."""
    message = {(reasoning_field if key == "reasoning" else key): value for key, value in said.items()}
    if calls := said.get("tool_calls"):
        message["tool_calls"] = [{**call, "id": tool_call_id(plan, index)} for index, call in enumerate(calls)]
    return message
