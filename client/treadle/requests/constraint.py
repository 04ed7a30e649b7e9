"""What the output must be an instance of."""

from treadle.constraint import Choice, Constraint, Grammar, JsonObject, JsonSchema, Regex
from treadle.requests.part import Part


def write(request: Part, constraint: Constraint | None) -> None:
    """Raises TypeError for what is not a Constraint."""
    message = request.part("constraint")
    match constraint:
        case None:
            pass
        case JsonSchema():
            message.set_json("json_schema", constraint.schema)
        case JsonObject():
            message.present("json_object")
        case Regex():
            message.set("regex", constraint.pattern)
        case Grammar():
            message.set("grammar", constraint.lark)
        case Choice():
            message.present("choice").extend("choices", constraint.choices)
        case _:
            raise TypeError(f"{request.path}constraint is {constraint!r}: must be a Constraint, such as JsonSchema")
