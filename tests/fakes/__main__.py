"""One fake engine as a process: `python -m tests.fakes --kind vllm --port 0`."""

import argparse
import sys

from tests.fakes import FakeEngine


def main() -> int:
    """Serve until interrupted; status 1 when a request has killed the engine."""
    parser = argparse.ArgumentParser(prog="python -m tests.fakes", description="a scripted inference engine")
    parser.add_argument("--kind", choices=("vllm", "sglang"), required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--deterministic", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--token-delay-s", type=float, default=0.0)
    parser.add_argument("--tokens-per-event", type=int, default=1)
    parser.add_argument("--max-model-len", type=int, default=4096)
    engine = FakeEngine(**vars(parser.parse_args()))
    engine.start()
    print(f"ready {engine.url}", flush=True)
    try:
        engine.wait()
    except KeyboardInterrupt:
        engine.stop()
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
