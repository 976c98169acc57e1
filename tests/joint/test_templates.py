"""The templates are those of the lock, and what the oracle knows of them by hand is true."""

import random
from pathlib import Path

import pytest

from tests.joint import wheel
from tests.joint.by_hand import by_hand, result, said, user
from tests.joint.conversations import make_case
from tests.joint.families import FAMILIES, family_of, templates
from tests.joint.oracle import MustRefuse, right_tail
from tests.joint.trial import battery
from tests.joint.wheel import chat_templates

# Written out by hand: what follows the end token when a user goes on.
TAILS = {
    "cohere": "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>nonceaac<|END_OF_TURN_TOKEN|>"
    "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    "cohere2": "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>nonceaac<|END_OF_TURN_TOKEN|>"
    "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_RESPONSE|>",
    "deepseekv3": "<｜User｜>nonceaac<｜Assistant｜><think>\n",
    "gemma": "\n<start_of_turn>user\nnonceaac<end_of_turn>\n<start_of_turn>model\n",
    "gemma4_v5": "\n<|turn>user\nnonceaac<turn|>\n<|turn>model\n",
    "glm4moe": "\nnonceaac<|assistant|>",
    "gptoss": "<|start|>user<|message|>nonceaac<|end|><|start|>assistant",
    "idefics3": "\nUser: nonceaac<end_of_utterance>\nAssistant:",
    "smolvlm": "\nUser: nonceaac<end_of_utterance>\nAssistant:",
    "lfm2": "\n<|im_start|>user\nnonceaac<|im_end|>\n<|im_start|>assistant\n",
    "llama3_1": "<|start_header_id|>user<|end_header_id|>\n\nnonceaac<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "llava_next": " [INST] nonceaac [/INST]",
    "muse_glimmer": "<|start|>user<|message|>nonceaac<|eot|><|start|>assistant",
    "nemotron_3_nano": "\n<|im_start|>user\nnonceaac<|im_end|>\n<|im_start|>assistant\n<think>\n",
    "phi3": "\n<|user|>\nnonceaac<|end|>\n<|assistant|>\n",
    "qwen2_5_vl": "\n<|im_start|>user\nnonceaac<|im_end|>\n<|im_start|>assistant\n",
    "qwen3": "\n<|im_start|>user\nnonceaac<|im_end|>\n<|im_start|>assistant\n",
    "qwen3_5_think": "\n<|im_start|>user\nnonceaac<|im_end|>\n<|im_start|>assistant\n<think>\n",
    "own_call_ids": "[INST]user: nonceaac[/INST]",
    "own_folding": "\n<|im_start|>user\nnonceaac<|im_end|>\n<|im_start|>assistant\n",
    "own_signed": "\n<|im_start|>user\nnonceaac<|im_end|>\n<|im_start|>assistant\n",
    "own_numbered": "\n<|im_start|>3 user\nnonceaac<|im_end|>\n<|im_start|>4 assistant\n",
}


def test_the_package_ships_the_templates_that_the_lock_names() -> None:
    """As many as were counted when the lock was written."""
    assert len(chat_templates()) == 72


def test_without_the_package_nothing_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel of another hash, or none, is an error that names the lock, and leaves no folder behind."""
    lock = tmp_path / "templates.lock"
    lock.write_text("trl==1.16.0 --hash=sha256:" + "0" * 64)
    monkeypatch.setattr(wheel, "LOCK", lock)
    monkeypatch.setattr(wheel, "CACHE", tmp_path / "cache")

    with pytest.raises(RuntimeError, match=r"the chat templates of templates\.lock could not be fetched"):
        chat_templates.__wrapped__()
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_each_family_has_templates_and_a_tail_written_by_hand(family: object) -> None:
    """No family is checked by the oracle's own words alone."""
    assert {name for name in templates() if family_of(name) is family} & set(TAILS)


@pytest.mark.parametrize("template", TAILS)
def test_the_oracle_knows_the_tail_that_was_written_by_hand(template: str) -> None:
    """Its answer for the plainest conversation, letter for letter."""
    case = by_hand(template, [user("nonceaaa"), said("nonceaab"), user("nonceaac")])

    assert right_tail(case) == TAILS[template]


@pytest.mark.parametrize("template", templates())
def test_the_oracle_has_a_right_tail_for_most_cases(template: str) -> None:
    """Were a joint text or a header wrong, the oracle would ask to refuse everything, and nothing could be wrong."""
    answers = [right_tail(case) for case in battery(template, 20)]

    assert sum(isinstance(answer, str) for answer in answers) >= 8


def test_a_case_is_made_the_same_way_twice() -> None:
    """Its seed decides all of it."""
    one, other = (make_case("qwen3", "seed", random.Random("seed")) for _ in range(2))

    assert one is not None
    assert other is not None
    assert (one.real, one.sampled) == (other.real, other.sampled)


def test_text_that_is_printed_nowhere_must_be_refused() -> None:
    """Phi-3 drops what tools say."""
    case = by_hand("phi3", [user("nonceaaa"), said("nonceaab"), result("nonceaac"), user("nonceaad")])

    assert right_tail(case) == MustRefuse("a new message is not printed")
