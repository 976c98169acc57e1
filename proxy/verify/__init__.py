"""A store held against its own promises, offline: no proxy runs for it, no engine is asked, nothing is written.

`opening` says what may be looked at, `rows` holds rows against one another, `calls` and `laws` what the rows mean, and
`story` goes through it all. Every fault names the call and what to do.
"""
