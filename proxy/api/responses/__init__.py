"""OpenAI's Responses API as harnesses speak it: items become a chat conversation, a reply becomes items again.

The engine is always asked through chat completions. What a client may refer to (an earlier response, an item of one) is
looked up among the calls of its own rollout, and stands in the conversation before anything is hashed.
"""

from proxy.api.responses.ask import read_ask, reader_of
from proxy.api.responses.view import ResponsesView
from proxy.api.view import ClientApi

RESPONSES = ClientApi(read_ask, ResponsesView, refer=reader_of)
