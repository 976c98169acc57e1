"""A recorded run served back without any engine: for harnesses on a laptop, and for tests of others.

`tape` finds the recorded call that a request repeats, `departure` words where one leaves the record, `stage` stands in
for store and engines. What is asked meanwhile is kept in a store that goes with the proxy. docs/cassette.md tells more.
"""
