"""`rollpin demo`: a proxy before a simulated engine, an agent run twice as a group, and what is to be seen of it.

The agent speaks through the OpenAI SDK where that is installed and plain HTTP where it is not; the tokens are the same.
"""
