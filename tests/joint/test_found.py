"""Wrong tails that the batteries found, each in its smallest form."""

from tests.joint.by_hand import by_hand, result, said, user
from tests.joint.trial import try_case


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
