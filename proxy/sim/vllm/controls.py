"""vLLM's development endpoints: pausing, aborting and the weights' label."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from proxy.sim.ask import EngineView


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
            Route("/update_weight_version", self.label, methods=["POST"]),
            Route("/weight_info", self.weight_info),
        ]

    async def pause(self, request: Request) -> Response:
        """`abort` ends what runs; `keep` holds it. Draining (`wait`) is not imitated: it holds as well."""
        self.engine.is_paused = True
        if request.query_params.get("mode", "abort") == "abort":
            self.engine.abort("")
        return JSONResponse({"status": "paused"})

    async def resume(self, _: Request) -> Response:
        """Go on."""
        self.engine.is_paused = False
        return JSONResponse({"status": "resumed"})

    async def is_paused(self, _: Request) -> Response:
        """Whether new calls are held."""
        return JSONResponse({"is_paused": self.engine.is_paused})

    async def abort(self, request: Request) -> Response:
        """By ids; none means all."""
        for start_of_id in (await request.json()).get("request_ids") or [""]:
            self.engine.abort(start_of_id)
        return Response()

    async def label(self, request: Request) -> Response:
        """A new label for the weights."""
        version = (await request.json())["new_version"]
        self.engine.label_weights(version)
        return JSONResponse({"success": True, "new_version": version})

    async def weight_info(self, _: Request) -> Response:
        """The label."""
        return JSONResponse({"weight_version": self.engine.setup.weight_version})
