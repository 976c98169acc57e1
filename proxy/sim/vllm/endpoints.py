"""vLLM's endpoints besides generation, with the development ones only where that mode is on."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from proxy import clock
from proxy.sim.ask import Refusal, fresh_hex
from proxy.sim.dialect import EngineView
from proxy.sim.template import Habits
from proxy.sim.tokens import decode, encode
from proxy.sim.vllm.controls import Controls
from proxy.sim.vllm.request import rendered_ids
from proxy.sim.vllm.scale_out import ScaleOut

VERSION = "0.32.0"
TOKENIZE_HABITS = Habits(reasoning_fields=("reasoning",), part_joint="\n", refuses_bad_arguments=False)
"""/tokenize does not turn `reasoning_content` into `reasoning` as chat does."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Everything but generation."""

    engine: EngineView

    def routes(self) -> list[Route]:
        return [
            Route("/v1/models", self.models),
            Route("/version", self.version),
            Route("/health", self.health),
            Route("/ping", self.health, methods=["GET", "POST"]),
            Route("/metrics", self.metrics),
            Route("/metrics/", self.metrics),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            *ScaleOut(self.engine).routes(),
            *(Controls(self.engine).routes() if self.engine.setup.dev_mode else ()),
        ]

    async def models(self, _: Request) -> Response:
        now, setup = int(clock.now()), self.engine.setup
        permission = {
            "id": f"modelperm-{fresh_hex(16)}",
            "object": "model_permission",
            "created": now,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        model = {
            "id": setup.model,
            "object": "model",
            "created": now,
            "owned_by": "vllm",
            "simulated": True,
            "root": f"models/{setup.model}",
            "parent": None,
            "max_model_len": setup.max_model_len,
            "permission": [permission],
        }
        return JSONResponse({"object": "list", "data": [model]})

    async def version(self, _: Request) -> Response:
        return JSONResponse({"version": VERSION, "simulated": True})

    async def health(self, _: Request) -> Response:
        return Response()

    async def metrics(self, request: Request) -> Response:
        began = "process_start_time_seconds"
        told = (f"# HELP {began} Start time of the process since unix epoch in seconds.", f"# TYPE {began} gauge")
        process = (*told, f"{began} {self.engine.started_at}") if self.engine.setup.api_servers == 1 else ()
        labels = f'{{engine="0",model_name="{self.engine.setup.model}"}}'
        lines = (
            "# HELP vllm:num_requests_running Number of requests in model execution batches.",
            "# TYPE vllm:num_requests_running gauge",
            f"vllm:num_requests_running{labels} {float(self.engine.running)}",
            "# HELP vllm:num_requests_waiting Number of requests waiting to be processed.",
            "# TYPE vllm:num_requests_waiting gauge",
            f"vllm:num_requests_waiting{labels} 0.0",
        )
        # Only the mounted half of the two that vLLM has there heeds the name.
        is_narrow = request.url.path.endswith("/") and request.query_params.getlist("name[]") == [began]
        wanted = process if is_narrow else (*process, *lines)
        return PlainTextResponse("".join(f"{line}\n" for line in wanted))

    async def tokenize(self, request: Request) -> Response:
        body = await request.json()
        try:
            ids = rendered_ids(body, TOKENIZE_HABITS) if "messages" in body else encode(body["prompt"])
        except Refusal as refusal:
            return JSONResponse(refusal.body, refusal.status)
        strings = [decode((i,)) for i in ids] if body.get("return_token_strs") else None
        setup = self.engine.setup
        answer = {"count": len(ids), "max_model_len": setup.max_model_len, "tokens": ids, "token_strs": strings}
        return JSONResponse(answer)

    async def detokenize(self, request: Request) -> Response:
        body = await request.json()
        return JSONResponse({"prompt": decode(body["tokens"])})
