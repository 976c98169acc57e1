"""A server that speaks as NeMo-RL's does, in front of a simulated vLLM: scripted from what its source says.

It renders the request, puts the ids that the caller requires in the place of what it rendered for them (up to the end
token that closes the last assistant turn, found by counting), and tells ids on the message.
"""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from proxy.sim.tokens import TURN_END
from tests.fakes import FakeEngine
from tests.fakes.front import Front, Json

FIELD = "required_prefix_token_ids"


class NemoRl(Front):
    """The server's answers; `splices` is false for one that takes no notice of the field."""

    def __init__(self, vllm: FakeEngine, *, splices: bool = True) -> None:
        super().__init__(vllm)
        self.splices = splices
        self.required: list[list[int] | None] = []

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        required = body.pop(FIELD, None)
        if isinstance(required, str):
            return JSONResponse({"error": {"message": f"{FIELD}: Input should be a valid list"}}, 400)
        self.required.append(required)
        if required and self.splices:
            body["kv_transfer_params"] = {"prompt_token_ids": self._spliced(body, required)}
        answer = self._vllm.post("/v1/chat/completions", json=body)
        return JSONResponse(_ids_on_the_message(answer.json()), answer.status_code)

    def _spliced(self, body: Json, required: list[int]) -> list[int]:
        """What was rendered, with the required ids up to the same number of ends."""
        asked: Json = {name: body[name] for name in ("messages", "tools", "chat_template_kwargs") if name in body}
        last = max(i for i, message in enumerate(body["messages"]) if message["role"] == "assistant")
        rendered = self._vllm.post("/tokenize", json=asked).json()["tokens"]
        told = {**asked, "messages": body["messages"][: last + 1], "add_generation_prompt": False}
        ends = self._vllm.post("/tokenize", json=told).json()["tokens"].count(TURN_END)
        places = [place for place, token in enumerate(rendered) if token == TURN_END]
        return [*required, *rendered[places[ends - 1] + 1 :]]


def _ids_on_the_message(reply: Json) -> Json:
    for choice in reply.get("choices") or ():
        choice["message"]["prompt_token_ids"] = reply.pop("prompt_token_ids", None)
        choice["message"]["generation_token_ids"] = choice.pop("token_ids", None)
    return reply
