"""Numbers of things, as people say them."""

from proxy.counted import counted


def test_one_is_told_in_the_singular() -> None:
    """Also where an s does not make the plural."""
    assert [counted(number, "call") for number in (0, 1, 2)] == ["0 calls", "1 call", "2 calls"]
    assert [counted(number, "prefix", "prefixes") for number in (1, 2)] == ["1 prefix", "2 prefixes"]
