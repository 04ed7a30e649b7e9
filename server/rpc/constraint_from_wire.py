"""Constraints from messages. Raises InvalidArgument naming the field as the client knows it."""

from treadle.v1 import generation_pb2 as pb

from server.engine.constraint import MAX_CHOICES, Choice, ConstraintSource, Grammar, JsonObject, JsonSchema, Regex
from server.engine.errors import InvalidArgument
from server.rpc.counts import check_count


def constraint(message: pb.Constraint) -> ConstraintSource:
    match message.WhichOneof("kind"):
        case "json_schema":
            return JsonSchema(message.json_schema)
        case "json_object":
            return JsonObject()
        case "regex":
            return Regex(message.regex)
        case "grammar":
            return Grammar(message.grammar)
        case "choice":
            check_count("constraint.choice", len(message.choice.choices), MAX_CHOICES)
            return Choice(tuple(message.choice.choices))
        case _:
            raise InvalidArgument("constraint", "unset", "one of its kinds must be set")
