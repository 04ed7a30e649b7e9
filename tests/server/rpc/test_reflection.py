"""Reflection as clients old and new ask for it, over a socket."""

from collections.abc import AsyncIterator

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest as Question
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionResponse as Answer
from treadle.v1 import generation_pb2 as pb

from tests.server.rpc.serving import Serving

ALPHA = "grpc.reflection.v1alpha.ServerReflection"
V1 = "grpc.reflection.v1.ServerReflection"
SERVICES = {"treadle.v1.GenerationService", "grpc.health.v1.Health", ALPHA, V1}

both_versions = pytest.mark.parametrize("version", [ALPHA, V1])


async def ask(serving: Serving, version: str, *questions: Question) -> list[Answer]:
    """The answers, as a client that knows the version's name and the wire format gets them."""

    async def asked() -> AsyncIterator[Question]:
        for question in questions:
            yield question

    method = serving.channel.stream_stream(
        f"/{version}/ServerReflectionInfo",
        request_serializer=Question.SerializeToString,
        response_deserializer=Answer.FromString,
    )
    return [answer async for answer in method(asked())]


async def described(serving: Serving, version: str, symbol: str) -> DescriptorPool:
    """What a client knows that starts from nothing and asks for this symbol."""
    (answer,) = await ask(serving, version, Question(file_containing_symbol=symbol))
    files = [FileDescriptorProto.FromString(raw) for raw in answer.file_descriptor_response.file_descriptor_proto]
    pool, added = DescriptorPool(), set[str]()
    while len(added) < len(files):
        ready = [file for file in files if file.name not in added and added.issuperset(file.dependency)]
        assert ready, "a file's dependency is missing"
        for file in ready:
            pool.AddSerializedFile(file.SerializeToString())
            added.add(file.name)
    return pool


@both_versions
async def test_every_service_is_listed(serving: Serving, version: str) -> None:
    (answer,) = await ask(serving, version, Question(list_services=""))
    assert {service.name for service in answer.list_services_response.service} == SERVICES


@both_versions
@pytest.mark.parametrize("service", sorted(SERVICES))
async def test_every_listed_service_is_described_with_all_its_types(
    serving: Serving, version: str, service: str
) -> None:
    pool = await described(serving, version, service)
    methods = pool.FindServiceByName(service).methods
    assert methods
    assert all(method.input_type.fields or method.output_type.fields for method in methods)


@both_versions
async def test_the_api_is_described_as_it_is(serving: Serving, version: str) -> None:
    pool = await described(serving, version, "treadle.v1.GenerationService")
    seen, own = FileDescriptorProto(), FileDescriptorProto()
    pool.FindFileByName(pb.DESCRIPTOR.name).CopyToProto(seen)
    pb.DESCRIPTOR.CopyToProto(own)
    assert seen == own


@both_versions
async def test_a_method_and_an_enum_value_are_symbols_too(serving: Serving, version: str) -> None:
    for symbol in ("treadle.v1.GenerationService.Generate", "treadle.v1.FINISH_REASON_TIME_LIMIT"):
        pool = await described(serving, version, symbol)
        assert pool.FindFileByName(pb.DESCRIPTOR.name)


@both_versions
@pytest.mark.parametrize("detail", ["ErrorInfo", "BadRequest", "RetryInfo"])
async def test_the_details_of_an_error_can_be_read_with_reflection(serving: Serving, version: str, detail: str) -> None:
    pool = await described(serving, version, f"google.rpc.{detail}")
    assert pool.FindMessageTypeByName(f"google.rpc.{detail}").fields


@both_versions
async def test_several_questions_on_one_stream_are_answered_in_their_order(serving: Serving, version: str) -> None:
    questions = [
        Question(file_containing_symbol="no.such.Service"),
        Question(file_by_filename=pb.DESCRIPTOR.name),
        Question(list_services=""),
    ]
    answers = await ask(serving, version, *questions)
    assert [answer.original_request for answer in answers] == questions
    assert [answer.WhichOneof("message_response") for answer in answers] == [
        "error_response",
        "file_descriptor_response",
        "list_services_response",
    ]


async def test_version_one_calls_its_own_types_by_its_own_names(serving: Serving) -> None:
    (info,) = (await described(serving, V1, V1)).FindServiceByName(V1).methods
    assert info.input_type.full_name == "grpc.reflection.v1.ServerReflectionRequest"
    assert info.output_type.full_name == "grpc.reflection.v1.ServerReflectionResponse"
    types = (field.message_type for field in info.output_type.fields if field.message_type)
    assert {each.file.package for each in types} == {"grpc.reflection.v1"}
