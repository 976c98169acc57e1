"""What the batteries found, each in its smallest form: wrong tails, then refusals without need."""

from dataclasses import replace
from typing import Any

from tests.joint.by_hand import by_hand, result, said, user
from tests.joint.case import Case
from tests.joint.families import family_of
from tests.joint.trial import try_case
from tests.joint.vocabulary import vocabulary

HALF = '<tool_call>\n{"name": "look_up", "arguments": {"path": "'


def dropped_half_call(wrote: str, **changes: Any) -> Case:
    """A turn that was cut inside a call, of which the engine told the text before the call."""
    messages = [user("nonceaaa"), said("nonceaab"), user("nonceaac")]
    cut = {"end": None, "finish": "length in a call", "finish_reason": "length", "whole_echo": False}
    return by_hand("qwen3", messages, wrote=wrote, kind="sglang", **cut, **changes)


def test_a_result_without_content_does_not_vanish() -> None:
    """Gemma 4 does not end a turn of calls with `<turn|>`, but may print it behind the results."""
    messages = [user("nonceaaa"), said(None, "aaz"), result(None), user("nonceaac")]
    trial = try_case(by_hand("diffusion_gemma", messages, wrote="<|tool_call>call:look_up{}<tool_call|>"))

    assert trial.verdict == "refused", str(trial)


def test_a_stop_string_that_is_the_end_is_not_closed_twice() -> None:
    """SGLang calls it a stop string, and no turn of this template has ended before."""
    end = "<|im_end|>"
    messages = [user("nonceaaa"), said("nonceaab"), user("nonceaac")]
    trial = try_case(by_hand("qwen3", messages, kind="sglang", matched_stop=end, stops=(end,)))

    assert trial.verdict == "right", str(trial)


def test_half_a_call_that_repeats_the_answer_is_not_taken_for_it() -> None:
    """The last words sampled are those of the answer, but they stand in a call that the engine dropped."""
    trial = try_case(dropped_half_call(f"<think>\nnonceaad\n</think>\n\nnonceaab{HALF}nonceaab", reasoning="nonceaad"))

    assert trial.verdict == "refused", str(trial)


def test_a_blank_stop_string_does_not_excuse_half_a_call() -> None:
    """Every text begins with nothing, so line breaks as a stop string allow no text at all behind the answer."""
    trial = try_case(dropped_half_call(f"nonceaab{HALF}", stops=("\n\n",)))

    assert trial.verdict == "refused", str(trial)


def test_calls_beside_an_unsaid_stop_string_go_on() -> None:
    """SGLang does not say what ended a reply that called tools; a string that was not said cannot have."""
    case = by_hand(
        "qwen3",
        [user("nonceaaa"), said(None, "aaz"), result("nonceaac"), user("nonceaad")],
        wrote='<tool_call>\n{"name": "look_up", "arguments": {}}\n</tool_call>',
        kind="sglang",
        finish_reason="tool_calls",
        stops=("Observation:",),
    )
    trial = try_case(case)

    assert trial.verdict == "right", str(trial)


def test_a_turn_that_stopped_at_a_named_token_is_closed_as_one_that_was_cut() -> None:
    """Engines keep that token out of the text, so the rest of the text must have come back."""
    tokens = vocabulary(family_of("qwen3").all_controls)
    halt = tokens.encode_plain(" halt")[-1]
    case = by_hand(
        "qwen3",
        [user("nonceaaa"), said("nonceaab"), user("nonceaac")],
        sampled=(*tokens.encode("nonceaab"), halt),
        end=None,
        finish="stop token",
        matched_stop=halt,
        has_stop_ids=True,
    )
    trial = try_case(case)

    assert trial.verdict == "right", str(trial)


def test_an_end_token_that_was_named_as_a_stop_id_is_not_closed_twice() -> None:
    """Engines then tell it like any other stop id."""
    end = vocabulary(family_of("qwen3").all_controls).controls["<|im_end|>"]
    messages = [user("nonceaaa"), said("nonceaab"), user("nonceaac")]
    trial = try_case(by_hand("qwen3", messages, kind="sglang", matched_stop=end, has_stop_ids=True))

    assert trial.verdict == "right", str(trial)


def test_an_answer_behind_an_empty_thought_may_be_cut() -> None:
    """The closing tag was sampled and comes back nowhere; nothing is lost by that."""
    case = by_hand(
        "nemotron_3_nano",
        [user("nonceaaa"), said("nonceaab"), user("nonceaac")],
        wrote="\n</think>\n\nnonceaab",
        end=None,
        finish="length in the answer",
        finish_reason="length",
    )
    trial = try_case(case)

    assert trial.verdict == "right", str(trial)


def cut_answer(template: str, wrote: str, told: str = "nonceaab", **changes: Any) -> Case:
    """A turn that the limit ended, of which this came back."""
    messages = [user("nonceaaa"), said(told), user("nonceaac")]
    cut = {"end": None, "finish": "length in the answer", "finish_reason": "length"}
    return by_hand(template, messages, wrote=wrote, **cut, **changes)


def test_an_answer_behind_the_templates_own_header_may_be_cut() -> None:
    """No client echoes the channel; the template prints the very same in front of an answer."""
    for template, header in (("gptoss", "<|channel|>final<|message|>"), ("muse_glimmer", " to=user<|message|>")):
        for answer in ("nonceaab", "a"):
            trial = try_case(cut_answer(template, header + answer, answer))

            assert trial.verdict == "right", str(trial)


def test_an_answer_in_another_channel_is_no_answer() -> None:
    """What stands in front of it is no header of an answer's, so the limit fell elsewhere, or text is lost."""
    for header in (
        "<|channel|>analysis<|message|>",
        "<|channel|>commentary<|message|>",
        "<|channel|>final <|constrain|>json<|message|>",
        "lost<|channel|>final<|message|>",
        "<|channel|>commentary<|message|>lost<|end|><|start|>assistant<|channel|>final<|message|>",
    ):
        trial = try_case(cut_answer("gptoss", header + "nonceaab"))

        assert trial.verdict == "refused", str(trial)


def test_a_limit_that_fell_on_an_end_never_seen_before_closes_nothing() -> None:
    """The template prints that token right behind an answer, so the turn has its end."""
    for template in ("qwen3", "llama3_1", "glm4moe", "gemma", "idefics3"):
        end = family_of(template).text_end
        case = cut_answer(template, "nonceaab" + end)
        case = replace(case, end=end, finish="length at the end")
        trial = try_case(case)

        assert trial.verdict == "right", str(trial)


def test_a_limit_that_fell_on_the_marker_of_a_call_is_no_end() -> None:
    """The answer before it came back whole, and the call that it opened did not."""
    trial = try_case(dropped_half_call("nonceaab<tool_call>"))

    assert trial.verdict == "refused", str(trial)
