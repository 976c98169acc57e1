"""What each family of models prints between two turns. Written by hand: this is half of the oracle.

A template belongs to the family whose `stems` its name begins with, the longest stem first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from tests.joint import styles
from tests.joint.own import OWN_TEMPLATES
from tests.joint.styles import Style
from tests.joint.wheel import chat_templates


@dataclass(frozen=True, slots=True)
class Family:
    """Tokens and joint texts of one family."""

    name: str
    stems: tuple[str, ...]
    header: str
    """Regular expression for what opens a message that is not the assistant's, up to its role."""
    joints: Mapping[str, str]
    """End token as the template prints it -> what it prints between that and the next header."""
    text_end: str
    """What the model samples last in an answer."""
    style: Style
    close: str | None = None
    """What the template prints behind an answer that has no end; None is the end token itself."""
    call_ends: tuple[str, ...] = ()
    """What the model may sample last in a turn of calls; empty: as in an answer."""
    header_ends: frozenset[str] = frozenset()
    """End tokens that are the next header: they are sampled, so the tail starts behind them."""
    pairs: Mapping[str, str] = field(default_factory=dict)
    """End token as sampled -> as printed when more messages follow."""
    strays: tuple[str, ...] = ("<|endoftext|>",)
    """Tokens that engines end a turn on too, and that the template prints nowhere."""
    controls: tuple[str, ...] = ()
    """Further control tokens."""
    has_tools: bool = True
    """Whether it prints tool results at all."""
    wants_parts: bool = False
    """Whether it knows content as a list of parts only."""
    wants_string_arguments: tuple[str, ...] = ()
    """Templates that print arguments as the string that the client sent; engines' own parsers leave it so."""

    @property
    def all_controls(self) -> tuple[str, ...]:
        ends = (self.text_end, *self.call_ends, *self.joints, *self.header_ends, *self.strays)
        return tuple(dict.fromkeys((*ends, *self.controls, "<bos>", "<pad>")))


CHATML = {"header": r"<\|im_start\|>", "joints": {"<|im_end|>": "\n"}, "text_end": "<|im_end|>"}
TAGS = ("<|im_start|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
GEMMA_4 = (
    "<|turn>", "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<tool_response|>", "<|tool>", "<tool|>",
    '<|"|>', "<|think|>",
)  # fmt: skip
DEEPSEEK = (
    "<｜User｜>", "<｜Assistant｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>",
    "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>",
)  # fmt: skip
COHERE = ("<|START_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>")

FAMILIES = (
    Family("Qwen2.5, Qwen3", ("qwen2_5", "qwen3"), **CHATML, style=styles.HERMES, controls=TAGS),
    Family(
        "Qwen2.5-VL", ("qwen2_5_vl",), **CHATML, style=styles.HERMES, controls=TAGS
    ),
    Family("Qwen3.5 to 3.8", ("qwen3_5", "qwen3_6", "qwen3_8"), **CHATML, style=styles.TAGGED, controls=TAGS),
    Family("Nemotron 3", ("nemotron",), **CHATML, style=styles.TAGGED, controls=TAGS),
    Family(
        "LFM2", ("lfm2",), **CHATML, style=styles.PYTHONIC,
        controls=(*TAGS, "<|tool_call_start|>", "<|tool_call_end|>", "<|tool_response_start|>",
                  "<|tool_response_end|>", "<|tool_list_start|>", "<|tool_list_end|>"),
    ),
    Family(
        "Llama 3", ("llama3",), header=r"<\|start_header_id\|>", joints={"<|eot_id|>": ""}, text_end="<|eot_id|>",
        style=styles.BARE, strays=("<|end_of_text|>", "<|eom_id|>"),
        controls=("<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>", "<|begin_of_text|>"),
    ),
    Family(
        "GLM-4.5", ("glm4",), header=r"<\|(?:user|observation|system)\|>", joints={}, text_end="<|user|>",
        style=styles.KEYED, close="", call_ends=("<|observation|>",),
        header_ends=frozenset({"<|user|>", "<|observation|>"}),
        controls=("<|assistant|>", "<|system|>", "[gMASK]", "<sop>", *TAGS[1:], "<arg_key>", "</arg_key>",
                  "<arg_value>", "</arg_value>"),
    ),
    Family(
        "gpt-oss", ("gptoss",), header=r"<\|start\|>", joints={"<|end|>": "", "<|call|>": ""}, text_end="<|return|>",
        style=styles.CHANNELLED, close="<|end|>", call_ends=("<|call|>",), pairs={"<|return|>": "<|end|>"},
        controls=("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"),
    ),
    Family(
        "Gemma 4", ("gemma4", "diffusion_gemma"), header=r"<\|turn>|<\|tool_response>",
        joints={"<turn|>": "\n", "<|tool_response>": ""}, text_end="<turn|>", style=styles.QUOTED,
        call_ends=("<|tool_response>", "<|tool_response>", "<turn|>"), header_ends=frozenset({"<|tool_response>"}),
        strays=("<eos>",), controls=GEMMA_4,
    ),
    Family(
        "Gemma 1 to 3", ("gemma",), header=r"<start_of_turn>", joints={"<end_of_turn>": "\n"},
        text_end="<end_of_turn>", style=styles.HERMES, strays=("<eos>",), controls=("<start_of_turn>",),
        has_tools=False,
    ),
    Family(
        "DeepSeek", ("deepseek",), header=r"<｜User｜>|(?:<｜tool▁outputs▁begin｜>|\n)?<｜tool▁output▁begin｜>",
        joints={"<｜end▁of▁sentence｜>": ""}, text_end="<｜end▁of▁sentence｜>", style=styles.FENCED,
        controls=DEEPSEEK, wants_string_arguments=("deepseekv3", "deepseek_r1_distill"),
    ),
    Family(
        "Muse", ("muse",), header=r"<\|start\|>", joints={"<|eot|>": "", "<|eom|>": ""}, text_end="<|eot|>",
        style=styles.INVOKED, controls=("<|start|>", "<|message|>", "<|patch|>", "<|video|>"),
    ),
    Family(
        "Cohere", ("cohere_", "cohere."), header=r"<\|START_OF_TURN_TOKEN\|>", joints={"<|END_OF_TURN_TOKEN|>": ""},
        text_end="<|END_OF_TURN_TOKEN|>", style=styles.HERMES, strays=("<EOS_TOKEN>",), controls=COHERE,
        has_tools=False,
    ),
    Family(
        "Cohere 2", ("cohere2",), header=r"<\|START_OF_TURN_TOKEN\|>", joints={"<|END_OF_TURN_TOKEN|>": ""},
        text_end="<|END_OF_TURN_TOKEN|>", style=styles.RESPONSE, close="<|END_RESPONSE|><|END_OF_TURN_TOKEN|>",
        strays=("<EOS_TOKEN>",), controls=(*COHERE, "<|START_RESPONSE|>", "<|END_RESPONSE|>"), has_tools=False,
    ),
    Family(
        "Phi 3", ("phi3",), header=r"<\|(?:user|system)\|>", joints={"<|end|>": "\n"}, text_end="<|end|>",
        style=styles.HERMES, controls=("<|user|>", "<|assistant|>", "<|system|>"), has_tools=False,
    ),
    Family(
        "Idefics 3, SmolVLM", ("idefics3", "smolvlm"), header="(?:User|Tool|System): ",
        joints={"<end_of_utterance>": "\n"}, text_end="<end_of_utterance>", style=styles.SPACED,
        controls=("<|im_start|>", "<|begin_of_text|>", "<image>"), wants_parts=True,
    ),
    Family(
        "Llava-Next", ("llava",), header=r"\[INST\] |<<SYS>>\n", joints={"</s>": " "}, text_end="</s>",
        style=styles.SPACED, strays=("<unk>",), controls=("<image>",), has_tools=False, wants_parts=True,
    ),
    Family(
        "own: call ids", ("own_call_ids",), header=r"\[INST\]|\[TOOL_RESULTS\]", joints={"</s>": ""}, text_end="</s>",
        style=styles.NUMBERED, strays=("<unk>",),
        controls=("[INST]", "[/INST]", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
    ),
    Family("own: folding", ("own_folding",), **CHATML, style=styles.HERMES, controls=TAGS),
    Family("own: numbered turns", ("own_numbered",), **CHATML, style=styles.HERMES, controls=TAGS),
    Family(
        "own: signed turns", ("own_signed",), **CHATML, style=styles.HERMES, close="ing<|im_end|>", controls=TAGS
    ),
)  # fmt: skip


@cache
def templates() -> dict[str, str]:
    """Every template that is tried, by name: the package's, and our own for habits that those do not have."""
    return {**chat_templates(), **OWN_TEMPLATES}


@cache
def family_of(template: str) -> Family:
    """The family whose longest stem the name begins with."""
    fitting = [(len(stem), family) for family in FAMILIES for stem in family.stems if f"{template}.".startswith(stem)]
    return max(fitting, key=lambda pair: pair[0])[1]
