"""vLLM's endpoint that turns token ids back into a chat reply; only with --enable-scale-out."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from proxy.sim.ask import parsing
from proxy.sim.dialect import EngineView
from proxy.sim.draw import Completion
from proxy.sim.reader import read_message
from proxy.sim.tokens import TURN_END
from proxy.sim.vllm.reply import message_of


@dataclass(frozen=True, slots=True)
class ScaleOut:
    """What a server answers for a fleet that renders and generates apart."""

    engine: EngineView

    def routes(self) -> list[Route]:
        return [Route("/v1/chat/completions/derender", self.derender, methods=["POST"])]

    async def derender(self, request: Request) -> Response:
        """The message of all ids; the finish reason stays as it was told."""
        if not self.engine.setup.scale_out:
            error = {"message": "scale-out endpoints are disabled", "type": "PermissionDeniedError", "param": None}
            return JSONResponse({"error": {**error, "code": 403}}, 403)
        body = await request.json()
        choice, asked = body["generate_response"]["choices"][0], body["chat_request"]
        ids, finish = tuple(choice["token_ids"]), choice["finish_reason"]
        ended = TURN_END if finish == "stop" and ids and ids[-1] == TURN_END else None
        completion = Completion(ids, (0.0,) * len(ids), finish, ended)
        message = read_message(completion, parsing(asked, self.engine.setup), keep_tail=False)
        told = {"index": 0, "message": message_of(asked, message), "logprobs": None, "finish_reason": finish}
        return JSONResponse({"object": "chat.completion", "choices": [told], "model": self.engine.setup.model})
