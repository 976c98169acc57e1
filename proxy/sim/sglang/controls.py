"""SGLang's endpoints for trainers: pausing, aborting and new weights."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from proxy.sim.dialect import EngineView


@dataclass(frozen=True, slots=True)
class Controls:
    """What changes the engine's state."""

    engine: EngineView

    def routes(self) -> list[Route]:
        """The table of them."""
        return [
            Route("/pause_generation", self.pause, methods=["POST"]),
            Route("/continue_generation", self.resume, methods=["POST"]),
            Route("/abort_request", self.abort, methods=["POST"]),
            Route("/flush_cache", self.flush, methods=["GET", "POST"]),
            Route("/update_weight_version", self.label, methods=["POST"]),
            Route("/update_weights_from_disk", self.load, methods=["POST"]),
        ]

    async def pause(self, request: Request) -> Response:
        """`abort` ends what runs; `retract` and `in_place` only hold it."""
        mode = (await request.json()).get("mode", "abort")
        self.engine.hold(mode)
        if mode == "abort":
            self.engine.abort("")
        return JSONResponse({"message": "Generation paused successfully.", "status": "ok"})

    async def resume(self, _: Request) -> Response:
        """Go on."""
        self.engine.pause = None
        return JSONResponse({"message": "Generation continued successfully.", "status": "ok"})

    async def abort(self, request: Request) -> Response:
        """By the start of an id, or all."""
        body = await request.json()
        if body.get("abort_all") or body.get("rid"):
            self.engine.abort("" if body.get("abort_all") else body["rid"])
        return Response()

    async def flush(self, _: Request) -> Response:
        """Only when nothing holds on to it: retracted calls do not."""
        if not self._flushes():
            return PlainTextResponse("Flush cache failed.\n", 400)
        return PlainTextResponse("Cache flushed.\n")

    async def label(self, request: Request) -> Response:
        """A new label for the weights."""
        version = (await request.json())["new_version"]
        self.engine.label_weights(version)
        message = f"Weight version updated to {version}"
        return JSONResponse({"success": True, "message": message, "new_version": version})

    async def load(self, request: Request) -> Response:
        """New weights. Where the cache cannot be flushed they are there all the same, and the answer is 400."""
        body = await request.json()
        self.engine.load_weights(body["model_path"])
        if body.get("weight_version") is not None:
            self.engine.label_weights(body["weight_version"])
        if body.get("flush_cache", True) and not self._flushes():
            message = "Weights were updated, but the cache was not flushed because there are running requests."
            return JSONResponse({"success": False, "message": message, "num_paused_requests": 0}, 400)
        message = "Succeeded to update model weights."
        return JSONResponse({"success": True, "message": message, "num_paused_requests": 0})

    def _flushes(self) -> bool:
        if self.engine.running and self.engine.pause not in ("abort", "retract"):
            return False
        self.engine.flush()
        return True
