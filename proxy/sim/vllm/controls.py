"""vLLM's development endpoints: pausing, aborting and the weights' label."""

import asyncio
from dataclasses import dataclass
from typing import cast

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from proxy.sim.ask import PauseMode
from proxy.sim.dialect import EngineView

LOOK_EVERY_S = 0.005


@dataclass(frozen=True, slots=True)
class Controls:
    """What changes the engine's state."""

    engine: EngineView

    def routes(self) -> list[Route]:
        """The table of them."""
        return [
            Route("/pause", self.pause, methods=["POST"]),
            Route("/resume", self.resume, methods=["POST"]),
            Route("/is_paused", self.is_paused),
            Route("/abort_requests", self.abort, methods=["POST"]),
            Route("/reset_prefix_cache", self.reset, methods=["POST"]),
            Route("/collective_rpc", self.rpc, methods=["POST"]),
            Route("/update_weight_version", self.label, methods=["POST"]),
            Route("/weight_info", self.weight_info),
        ]

    async def pause(self, request: Request) -> Response:
        """`abort` ends what runs, `wait` waits for its end, `keep` holds it and computes its cache anew later."""
        mode = request.query_params.get("mode", "abort")
        if mode not in ("abort", "wait", "keep"):
            return JSONResponse({"error": f"Invalid pause mode: {mode}"}, 400)
        self.engine.hold(cast("PauseMode", mode))
        if mode == "abort":
            self.engine.abort("")
        while mode == "wait" and self.engine.busy:  # noqa: ASYNC110  calls tell nobody when they end
            await asyncio.sleep(LOOK_EVERY_S)
        self.engine.flush()
        return JSONResponse({"status": "paused"})

    async def resume(self, _: Request) -> Response:
        """Go on."""
        self.engine.pause = None
        return JSONResponse({"status": "resumed"})

    async def is_paused(self, _: Request) -> Response:
        """Whether new calls are held."""
        return JSONResponse({"is_paused": self.engine.pause is not None})

    async def abort(self, request: Request) -> Response:
        """By ids; none means all."""
        for start_of_id in (await request.json()).get("request_ids") or [""]:
            self.engine.abort(start_of_id)
        return Response()

    async def reset(self, _: Request) -> Response:
        """Empty the prefix cache; refused in words, not by status, while calls hold on to it."""
        if self.engine.running and self.engine.pause is None:
            return JSONResponse({"success": False})
        self.engine.flush()
        return JSONResponse({"success": True})

    async def rpc(self, request: Request) -> Response:
        """Only `reload_weights`; it neither labels them nor flushes."""
        body = await request.json()
        if body.get("method") != "reload_weights":
            return JSONResponse({"error": "not imitated"}, 400)
        self.engine.load_weights(body["kwargs"]["weights_path"])
        return JSONResponse({"results": [None]})

    async def label(self, request: Request) -> Response:
        """A new label for the weights."""
        version = (await request.json())["new_version"]
        self.engine.label_weights(version)
        return JSONResponse({"success": True, "new_version": version})

    async def weight_info(self, _: Request) -> Response:
        """The label."""
        return JSONResponse({"weight_version": self.engine.setup.weight_version})
