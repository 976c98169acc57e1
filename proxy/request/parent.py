"""The parent of a call: for now only first turns are told from later ones, and later ones are left unresolved."""

from proxy.model import Conversation, Parent, Prefix


def resolve_parent(conversation: Conversation) -> Parent:
    """`root` where no assistant has spoken yet; else `unresolved`, since lineage is not built yet."""
    if conversation.has_assistant:
        return Parent("unresolved", "lineage_not_built")
    return Parent("root", "first_turn")


def supply_prefix(parent: Parent) -> Prefix:
    """No prefix is supplied yet; the reason is the parent's."""
    return Prefix(eligible=False, requested=False, supplied=False, length=0, reason=parent.reason)
