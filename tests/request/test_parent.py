"""The parent of a call, as far as lineage is built."""

from proxy.request.parent import resolve_parent, supply_prefix
from tests import make


def test_a_conversation_without_an_assistant_is_a_root() -> None:
    """Nothing went before it."""
    parent = resolve_parent(make.ask(make.user()).conversation)

    assert (parent.outcome, parent.call_id) == ("root", None)


def test_a_later_turn_is_not_called_a_root() -> None:
    """What is not known is said to be unresolved, never guessed."""
    parent = resolve_parent(make.ask(make.user(), make.assistant(), make.user()).conversation)

    assert (parent.outcome, parent.call_id) == ("unresolved", None)
    assert not supply_prefix(parent).requested
