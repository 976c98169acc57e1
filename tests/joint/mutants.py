"""`joint.py` with one of its checks taken out, as modules of their own."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from proxy.request import joint
from tests.joint.trial import Finder

SOURCE = Path(joint.__file__).read_text()


@dataclass(frozen=True, slots=True)
class Check:
    """An `if` that leads to a refusal."""

    line: int
    function: str
    condition: str
    reason: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.condition}"

    def removed(self) -> Finder:
        """`find_tail` of a copy of the module in which the condition never holds."""
        tree = ast.parse(SOURCE)
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and node.lineno == self.line:
                node.test = ast.Constant(value=False)
        names = dict(vars(joint))
        exec(compile(ast.fix_missing_locations(tree), f"joint.py without line {self.line}", "exec"), names)
        finder: Finder = names["find_tail"]
        return finder


def checks() -> list[Check]:
    """Every check, in the order of the file."""
    return sorted(_checks(), key=lambda check: check.line)


def _checks() -> Iterator[Check]:
    for function in ast.walk(ast.parse(SOURCE)):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.If) and (reason := _refusal(node.body[0])):
                yield Check(node.lineno, function.name, ast.unparse(node.test), reason)


def _refusal(statement: ast.stmt) -> str | None:
    """The reason, if the statement is `return Refused("reason", ...)`."""
    match statement:
        case ast.Return(value=ast.Call(func=ast.Name(id="Refused"), args=[ast.Constant(value=str(reason)), *_])):
            return reason
    return None
