"""Media that an engine would leave out of the prompt without a word: the model would answer another question."""

from proxy.errors import BadAsk
from proxy.model import Ask, EngineFacts

# What an engine says it understands (SGLang's names), by the kind of part that needs it. vLLM does not say, and refuses
# by itself what it does not understand.
SENSES = {
    "image_url": "has_image_understanding",
    "video_url": "has_image_understanding",
    "audio_url": "has_audio_understanding",
    "input_audio": "has_audio_understanding",
}


def refuse_unseen(ask: Ask, facts: EngineFacts) -> None:
    """Raise BadAsk where the engine says that its model has no sense for a part of the conversation."""
    for place, message in enumerate(ask.messages):
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            kind = str(part.get("type"))
            sense = SENSES.get(kind)
            if sense and facts.details.get(sense) is False:
                raise BadAsk(
                    f"messages[{place}]: the engine's model does not understand {kind} parts",
                    code="media_unsupported",
                    param="messages",
                )
