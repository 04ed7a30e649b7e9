from server.parsing.parts import Content, Part, Reasoning, ToolCallPart, joined


def test_neighbours_that_belong_together_become_one_part() -> None:
    parts: list[Part] = [
        Reasoning("a"),
        Reasoning("b"),
        Content("c"),
        ToolCallPart(0, "id0", "f"),
        ToolCallPart(0, arguments_json="{"),
        ToolCallPart(0, arguments_json="}", complete=True),
        ToolCallPart(1, "id1", "g", "{"),
        Content("d"),
        Content("e"),
    ]
    assert joined(parts) == [
        Reasoning("ab"),
        Content("c"),
        ToolCallPart(0, "id0", "f", "{}", complete=True),
        ToolCallPart(1, "id1", "g", "{"),
        Content("de"),
    ]
