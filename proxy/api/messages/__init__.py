"""Anthropic's Messages as harnesses speak them, Claude Code above all.

A body is put into chat form, since engines are asked through chat completions; what has no chat form is refused where
it says something to the model, and left out with a note where it does not. Replies are built from the chat events.
"""

from proxy.api.forms import anthropic_form
from proxy.api.messages.reader import read_ask
from proxy.api.messages.view import MessagesView
from proxy.api.view import ClientApi

__all__ = ["MESSAGES"]

MESSAGES = ClientApi(read_ask, MessagesView, anthropic_form)
