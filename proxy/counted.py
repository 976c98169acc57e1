"""Numbers of things, as people say them."""


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """`1 call`, `2 calls`; the plural is told where an s does not make it."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
