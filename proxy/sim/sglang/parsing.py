"""SGLang's parsers as endpoints: what chat does to a text, for whoever has one."""

import json
import re

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

OPEN, CLOSE = "<think>", "</think>"
CALLS = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)
CALL_START = "<tool_call>\n"


def parsing_routes() -> list[Route]:
    return [
        Route("/separate_reasoning", separate_reasoning, methods=["POST"]),
        Route("/parse_function_call", parse_function_call, methods=["POST"]),
    ]


async def separate_reasoning(request: Request) -> Response:
    """A text without an opening mark holds no thought, whatever chat would make of it."""
    text = (await request.json())["text"]
    if OPEN not in text:
        return JSONResponse({"reasoning_text": "", "text": text})
    while text.startswith(OPEN):
        text = text.removeprefix(OPEN)
    reasoning, closes, said = text.partition(CLOSE)
    return JSONResponse({"reasoning_text": reasoning, "text": said if closes else ""})


async def parse_function_call(request: Request) -> Response:
    """Whole calls; half a one is dropped without a word."""
    body = await request.json()
    if not body.get("tool_call_parser"):
        return Response("Internal Server Error", 500)
    text, calls = body["text"], list[dict[str, object]]()
    for written in CALLS.findall(text):
        try:
            call = json.loads(written)
        except ValueError:
            continue
        calls.append(
            {"tool_index": 0, "name": call["name"], "parameters": json.dumps(call["arguments"], ensure_ascii=False)}
        )
    said = text[: text.index(CALL_START)].strip() if CALL_START in text else text
    return JSONResponse({"normal_text": said, "calls": calls})
