"""SGLang's endpoints besides generation: discovery, tokenizing, and the trainer's controls."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from proxy import clock
from proxy.sim.dialect import EngineView
from proxy.sim.scoring import score
from proxy.sim.sglang.controls import Controls
from proxy.sim.sglang.parsing import parsing_routes
from proxy.sim.sglang.request import rendered_ids
from proxy.sim.template import Json, Unrenderable
from proxy.sim.tokens import decode, encode

VERSION = "0.5.23"


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Everything but generation."""

    engine: EngineView

    def routes(self) -> list[Route]:
        """The table of them."""
        return [
            Route("/v1/models", self.models),
            Route("/model_info", self.model_info),
            Route("/get_model_info", self.model_info),
            Route("/server_info", self.server_info),
            Route("/get_server_info", self.server_info),
            Route("/v1/loads", self.loads),
            Route("/health", self.health),
            Route("/ready", self.health),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/v1/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            Route("/generate", self.generate, methods=["POST"]),
            *parsing_routes(),
            *Controls(self.engine).routes(),
        ]

    async def models(self, _: Request) -> Response:
        """The one model."""
        setup = self.engine.setup
        model = {
            "id": setup.weights or setup.model,
            "object": "model",
            "created": int(clock.now()),
            "owned_by": "sglang",
            "simulated": True,
            "root": setup.weights or setup.model,
            "parent": None,
            "max_model_len": setup.max_model_len,
        }
        return JSONResponse({"object": "list", "data": [model]})

    async def model_info(self, _: Request) -> Response:
        """What changes with the weights."""
        setup = self.engine.setup
        info = {
            "model_path": setup.weights or f"models/{setup.model}",
            "served_model_name": setup.weights or setup.model,
            "tokenizer_path": f"models/{setup.model}",
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": setup.weight_version,
            "load_format": "auto",
            "reasoning_parser": "qwen3" if setup.parsers else None,
            "tool_call_parser": "qwen" if setup.parsers else None,
            "disaggregation_mode": "null",
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "model_type": "qwen3",
            "architectures": ["Qwen3ForCausalLM"],
            "simulated": True,
        }
        return JSONResponse(info)

    async def server_info(self, _: Request) -> Response:
        """How the server was started; its weight version is the one from then."""
        setup = self.engine.setup
        flags: Json = {
            "model_path": f"models/{setup.model}",
            "tokenizer_path": f"models/{setup.model}",
            "served_model_name": setup.model,
            "weight_version": "default",
            "context_length": setup.max_model_len,
            "max_total_num_tokens": 2 * setup.max_model_len,
            "max_req_input_len": setup.max_model_len - 6,
            "random_seed": 1234,
            "dp_size": 1,
            "tp_size": 1,
            "skip_tokenizer_init": False,
            "attention_backend": "torch_native",
            "sampling_backend": "pytorch",
            "sampling_defaults": "openai" if setup.neutral_defaults else "model",
            "preferred_sampling_params": None,
            "enable_deterministic_inference": setup.deterministic,
            "rl_on_policy_target": None,
            "speculative_algorithm": None,
            "disable_radix_cache": False,
            "chunked_prefill_size": 4096,
            "allow_auto_truncate": setup.auto_truncates,
            "enable_custom_logit_processor": False,
            "return_input_ids": False,
            "return_output_ids": False,
            "incremental_streaming_output": False,
            "reasoning_parser": "qwen3" if setup.parsers else None,
            "tool_call_parser": "qwen" if setup.parsers else None,
            "status": "ready",
            "simulated": True,
            "version": VERSION,
            "frontend": "python",
        }
        return JSONResponse({**flags, "internal_states": [dict(flags)]})

    async def loads(self, _: Request) -> Response:
        """How busy it is; nothing ever waits here."""
        load = {"dp_rank": 0, "num_running_reqs": self.engine.running, "num_waiting_reqs": 0}
        return JSONResponse({"version": VERSION, "loads": [load]})

    async def health(self, _: Request) -> Response:
        """Alive."""
        return Response()

    async def tokenize(self, request: Request) -> Response:
        """Ids of a text or of messages."""
        body = await request.json()
        try:
            ids = rendered_ids(body) if "messages" in body else encode(body["prompt"])
        except Unrenderable as problem:
            error = {"object": "error", "message": str(problem), "type": "BadRequestError", "param": None}
            return JSONResponse({**error, "code": 400}, 400)
        length = self.engine.setup.max_model_len
        return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": length})

    async def detokenize(self, request: Request) -> Response:
        """Text of ids, without special tokens unless they are asked for."""
        body = await request.json()
        return JSONResponse({"text": decode(body["tokens"], skip_special=body.get("skip_special_tokens", True))})

    async def generate(self, request: Request) -> Response:
        """The native route, for logprobs of a prompt alone: nothing is generated."""
        body = await request.json()
        self.engine.scored.append(body)
        ids, params = body["input_ids"], body.get("sampling_params") or {}
        if params.get("max_new_tokens") != 0:
            return JSONResponse({"error": {"message": "the simulation scores prompts here, and draws in chat"}}, 400)
        start = max(int(body.get("logprob_start_len", -1)), 0)
        scored = list(zip(score(ids, self.engine.setup.model), ids, strict=True))[start:]
        told = [[None if place == 0 else logprob, token, None] for place, (logprob, token) in enumerate(scored)]
        meta = {
            "prompt_tokens": len(ids),
            "completion_tokens": 0,
            "finish_reason": {"type": "length", "length": 0},
            "weight_version": self.engine.setup.weight_version,
            "input_token_logprobs": told,
            "output_token_logprobs": [],
        }
        return JSONResponse({"text": "", "output_ids": [], "meta_info": meta})
