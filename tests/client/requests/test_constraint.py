"""Each kind of constraint is the one of the API."""

import json

import pytest
import treadle
from treadle import requests
from treadle.v1 import generation_pb2 as pb


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        (treadle.JsonObject(), pb.Constraint(json_object=pb.JsonObject())),
        (treadle.Regex("a|b"), pb.Constraint(regex="a|b")),
        (treadle.Regex(""), pb.Constraint(regex="")),
        (treadle.Grammar('start: "a"'), pb.Constraint(grammar='start: "a"')),
        (treadle.Choice(["yes", "no"]), pb.Constraint(choice=pb.Choice(choices=["yes", "no"]))),
        (treadle.Choice([]), pb.Constraint(choice=pb.Choice())),
        (treadle.JsonSchema('{"type":  "string"}'), pb.Constraint(json_schema='{"type":  "string"}')),
        (treadle.JsonSchema(True), pb.Constraint(json_schema="true")),
        (treadle.JsonSchema({"enum": ["é"]}), pb.Constraint(json_schema='{"enum": ["é"]}')),
    ],
)
def test_it_arrives_as_its_kind(constraint: treadle.Constraint, expected: pb.Constraint) -> None:
    sent = requests.generate("hi", constraint=constraint).constraint
    assert sent == expected
    assert sent.WhichOneof("kind") == expected.WhichOneof("kind")


def test_a_schema_keeps_the_order_of_its_keys() -> None:
    schema = {"type": "object", "properties": {"z": {}, "a": {}, "m": {}}}
    sent = requests.generate("hi", constraint=treadle.JsonSchema(schema)).constraint.json_schema
    assert list(json.loads(sent)["properties"]) == ["z", "a", "m"]


def test_one_choice_is_not_taken_for_its_letters() -> None:
    with pytest.raises(TypeError, match="choices is 'yes': must be a sequence of texts"):
        treadle.Choice("yes")
