"""A plugin that lets SGLang start with `--enable-deterministic-inference` on a CPU.

The seeded sampler is then SGLang's own. The batch-invariant operators are not: they exist for GPUs only and
stay off, so nothing learnt here says that logits on a GPU do not depend on the batch.
"""

from sglang.srt import batch_invariant_ops
from sglang.srt.arg_groups import choices

BACKEND = "torch_native"


def register() -> None:
    """Admit plain torch attention to determinism, and leave the missing operators alone."""
    admit(choices.DETERMINISTIC_ATTENTION_BACKEND_CHOICES)
    admit(choices.RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND)
    batch_invariant_ops.enable_batch_invariant_mode = stay_off


def admit(backends: list[str]) -> None:
    """Add our backend to a list of SGLang's, in place."""
    if BACKEND not in backends:
        backends.append(BACKEND)


def stay_off(*_arguments: object, **_options: object) -> None:
    """Stand in for the switch to batch-invariant operators."""
