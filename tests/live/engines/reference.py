"""What transformers says about given tokens, for comparison with an engine; run by the engine's interpreter.

In on stdin:   {"model_dir": ..., "rows": [{"prompt": [ids], "completion": [ids], "temperature": 1.0}]}
Out on stdout: {"logprobs": [[one number per completion token] per row]}
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM


@torch.inference_mode()
def completion_logprobs(model: torch.nn.Module, prompt: list[int], completion: list[int], temperature: float) -> list:
    """The log-probability of each completion token after all tokens before it, in float32."""
    if not completion:
        return []
    logits = model(torch.tensor([prompt + completion])).logits[0].float() / temperature
    before = logits[len(prompt) - 1 : -1].log_softmax(dim=-1)
    return before.gather(1, torch.tensor(completion)[:, None])[:, 0].tolist()


def main() -> None:
    """Answer one question."""
    question = json.load(sys.stdin)
    model = AutoModelForCausalLM.from_pretrained(question["model_dir"], dtype=torch.float32).eval()
    rows = question["rows"]
    logprobs = [
        completion_logprobs(model, row["prompt"], row["completion"], row.get("temperature", 1.0)) for row in rows
    ]
    json.dump({"logprobs": logprobs}, sys.stdout)


if __name__ == "__main__":
    main()
