"""A harness and its record: the OpenAI SDK through Rollpin. Start `make demo`, then run this beside it."""
# ruff: noqa: T201  printing is what it does

import os
import sys

import httpx
import openai

URL = os.environ.get("ROLLPIN_URL", "http://127.0.0.1:8080")
TOKEN = os.environ.get("ROLLPIN_ADMIN_TOKEN", "demo-admin-token")
trainer = httpx.Client(base_url=URL, headers={"authorization": f"Bearer {TOKEN}"}, timeout=60)

# The trainer opens a rollout: one sample of a group, with seeds of its own.
try:
    rollout = trainer.post("/rollouts", json={}).raise_for_status().json()
except (httpx.HTTPError, ValueError) as error:
    why = str(error).partition("\n")[0]
    sys.exit(
        f"No rollout could be opened at {URL}:\n  {why}\n"
        "Start `make demo` and leave it running, or name a running proxy\n"
        "by ROLLPIN_URL and ROLLPIN_ADMIN_TOKEN."
    )

# The harness needs a base URL and a key, and may ask for what it likes.
harness = openai.OpenAI(base_url=rollout["base_url"], api_key=rollout["api_key"])
reply = harness.chat.completions.create(
    model="any-name", messages=[{"role": "user", "content": "How are you?"}], temperature=0.2, seed=1
)
print(f"the harness got  {reply.choices[0].message.content!r}")

# The trainer closes the rollout and reads what was recorded.
trainer.post(f"/rollouts/{rollout['rollout_id']}/finish").raise_for_status()
(call,) = trainer.get(f"/rollouts/{rollout['rollout_id']}/calls").raise_for_status().json()["calls"]
print(f"sampling asked   {call['sampling']['asked']}")
print(f"engine was told  {call['sampling']['effective']} and seed {call['seed']['value']}")
print(f"prompt           {len(call['prompt_token_ids'])} tokens")
for token_id, logprob in zip(call["completion_token_ids"], call["logprobs"], strict=True):
    print(f"  token {token_id:>6}  logprob {logprob:8.4f}")
