"""Which variables a Jinja template takes from whoever renders it.

`jinja2.meta.find_undeclared_variables` also names those that a template always sets itself before it reads them, where
it sets them in branches or loops. A value given for one of these would be ignored, so here the template is followed
statement by statement: what every branch of an `if` sets is set after it (definite assignment, as compilers know it).
"""

from collections.abc import Iterable

from jinja2 import meta, nodes

SCOPES = (nodes.Block, nodes.FilterBlock, nodes.Scope, nodes.ScopedEvalContextModifier)
"""What is set in them is not set after them."""


def variables_of(template: nodes.Template) -> frozenset[str]:
    reader = _Reader()
    reader.follow(template.body, set())
    return frozenset(meta.find_undeclared_variables(template) & reader.read)


class _Reader:
    """`read` has the names that were read where they may not have been set. `known` are those set at a point."""

    def __init__(self) -> None:
        self.read: set[str] = set()

    def follow(self, parts: Iterable[nodes.Node], known: set[str]) -> set[str]:
        """`known`, to which it adds what the parts set, one after another."""
        for part in parts:
            self._follow_one(part, known)
        return known

    def _follow_one(self, part: nodes.Node, known: set[str]) -> None:
        match part:
            case nodes.Name(ctx="load"):
                self.read |= {part.name} - known
            case nodes.Name():
                known.add(part.name)
            case nodes.Assign():
                self.follow([part.node, part.target], known)
            case nodes.AssignBlock():
                self.follow([*part.body, *([part.filter] if part.filter else [])], set(known))
                self.follow([part.target], known)
            case nodes.If():
                self._follow_if(part, known)
            case nodes.For():
                self.follow([part.iter], known)
                inside = self.follow([part.target], set(known))
                self.follow([*([part.test] if part.test else []), *part.body], inside)
                self.follow(part.else_, set(known))
            case nodes.With():
                self.follow(part.values, known)
                self.follow([*part.targets, *part.body], set(known))
            case nodes.Macro() | nodes.CallBlock():
                self.follow([*part.defaults, *([part.call] if isinstance(part, nodes.CallBlock) else [])], known)
                self.follow([*part.args, *part.body], set(known))
                known |= {part.name} if isinstance(part, nodes.Macro) else set()
            case _:
                inside = set(known) if isinstance(part, SCOPES) else known
                self.follow(part.iter_child_nodes(), inside)

    def _follow_if(self, part: nodes.If, known: set[str]) -> None:
        self.follow([part.test], known)
        ends = [self.follow(part.body, set(known))]
        otherwise = set(known)
        for branch in part.elif_:
            self.follow([branch.test], otherwise)
            ends.append(self.follow(branch.body, set(otherwise)))
        ends.append(self.follow(part.else_, otherwise))
        known |= set.intersection(*ends)
