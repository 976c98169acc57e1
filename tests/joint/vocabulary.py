"""A small byte-level vocabulary, and in front of it the control tokens of one family of models.

Control tokens written out in a message become control tokens again, as they do on engines.
"""

from collections.abc import Sequence
from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.joint.wheel import chat_templates

MERGES = 6000
PROSE = """The model looked up the weather in Reykjavík and wrote three lines, then it asked whether "that" was right.
{"path": "notes/a b.txt", "mode": "append", "count": 12, "ratio": 0.5, "tags": ["a", "b"], "deep": {"x": null}}
def total(values):\n    return sum(value for value in values if value > 0)\n
Größe, naïve, señor, façade; Привет, как дела? 你好 世界。こんにちは。 مرحبا بالعالم שלום
"""


@cache
def _trained() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + MERGES, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([*sorted(chat_templates().values()), PROSE * 8], trainer)
    return tokenizer.to_str()


class Vocabulary:
    """Text to ids and back, with control tokens kept in both directions."""

    def __init__(self, controls: Sequence[str]) -> None:
        self.plain = Tokenizer.from_str(_trained())
        self.full = Tokenizer.from_str(_trained())
        self.full.add_special_tokens([AddedToken(control, normalized=False, special=True) for control in controls])
        self.controls = {control: self.full.token_to_id(control) for control in controls}

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.full.encode(text, add_special_tokens=False).ids)

    def encode_plain(self, text: str) -> tuple[int, ...]:
        """Without control tokens: a marker in the text is spelt out."""
        return tuple(self.plain.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return self.full.decode(list(ids), skip_special_tokens=False)


@cache
def vocabulary(controls: tuple[str, ...]) -> Vocabulary:
    return Vocabulary(controls)
