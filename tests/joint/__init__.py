"""The joint on real chat templates: right or refused, never wrong.

`families` says by hand what each family prints, `conversations` makes cases, `engine` renders them as an engine would,
`oracle` knows the one right answer without sharing a line with `proxy`, `trial` holds both against each other, and
`table` counts. `docs/joint.md` publishes the counts.
"""
