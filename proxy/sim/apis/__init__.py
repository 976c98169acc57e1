"""The APIs that an engine speaks: its own chat and completions, and those that it tells in terms of chat.

As on the real engines, a body of the Messages or the Responses API becomes a chat body with the fields that have a
meaning there, and the chat reply is told again in that API's words. Seeds and ids are lost on the way where the real
engines lose them. Nothing here comes from the proxy, which translates the same APIs: each is a check on the other.
"""

from proxy.sim.apis.api import OWN, Api
from proxy.sim.apis.messages import MESSAGES
from proxy.sim.apis.responses import Responses

__all__ = ["MESSAGES", "OWN", "Api", "Responses"]
