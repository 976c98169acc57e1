"""How engines are told one exchange from another."""

from proxy import clock


def exchange_name(call_id: str) -> str:
    """A name in the engine's log for one exchange of a call; what goes on from it or repeats it has another.

    Two seconds after the end of a stream SGLang aborts whatever then runs under a name that begins with the stream's;
    and it refuses a second request of a name that it is at work on (tokenizer_manager.py of 0.5.23).
    """
    return f"{clock.new_id('ex')}.{call_id}"
