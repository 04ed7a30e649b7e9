"""Request messages from bytes, strictly.

gRPC's own deserializing answers whatever is wrong with INTERNAL and names no field, so the methods take bytes and parse
them here. Fields this server does not know are refused: a parameter must not be accepted and then ignored.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from server.engine.errors import InvalidArgument
from server.rpc.errors import MalformedMessage

AnyMessage = TypeVar("AnyMessage", bound=Message)


def decode(message_class: type[AnyMessage], raw: bytes) -> AnyMessage:
    """Raises InvalidArgument for text that is not UTF-8 or a field that is unknown, MalformedMessage for the rest."""
    try:
        message = message_class.FromString(raw)
    except DecodeError:
        raise _reason_for_failure(message_class, raw) from None
    for path, part in _messages(message, ""):
        unknown = UnknownFieldSet(part)
        for i in range(len(unknown)):
            limit = f"{part.DESCRIPTOR.full_name} has no field of this number here"
            raise InvalidArgument(_join(path, str(unknown[i].field_number)), "unknown", limit)
    return message


def _reason_for_failure(message_class: type[Message], raw: bytes) -> InvalidArgument | MalformedMessage:
    malformed = MalformedMessage(f"the message is not a {message_class.DESCRIPTOR.full_name}")
    try:
        twin = _twin_class(message_class.DESCRIPTOR.full_name).FromString(raw)
    except DecodeError:
        return malformed
    texts = ((path, text) for part_path, part in _messages(twin, "") for path, text in _bytes_fields(part, part_path))
    for path, text in texts:
        try:
            text.decode()
        except UnicodeDecodeError as error:
            return InvalidArgument(path, f"not UTF-8 at byte {error.start} of {len(text)}", "must be valid UTF-8")
    return malformed


@cache
def _twin_class(message_name: str) -> type[Message]:
    """The same message with `bytes` for `string`, which parses whatever the encoding of its texts."""
    pool = descriptor_pool.DescriptorPool()
    _add_twin(descriptor_pool.Default().FindFileContainingSymbol(message_name).name, pool)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(message_name))


def _add_twin(file_name: str, pool: descriptor_pool.DescriptorPool) -> None:
    file = descriptor_pool.Default().FindFileByName(file_name)
    twin = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(twin)
    for dependency in twin.dependency:
        _add_twin(dependency, pool)
    for message_type in twin.message_type:
        _make_bytes_of_strings(message_type)
    pool.Add(twin)


def _make_bytes_of_strings(message_type: descriptor_pb2.DescriptorProto) -> None:
    # A map with text for keys becomes a plain list of entries: bytes cannot be keys.
    message_type.options.ClearField("map_entry")
    for field in message_type.field:
        if field.type == descriptor_pb2.FieldDescriptorProto.TYPE_STRING:
            field.type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
    for nested in message_type.nested_type:
        _make_bytes_of_strings(nested)


def _messages(message: Message, path: str) -> Iterator[tuple[str, Message]]:
    """The message and those in it, each with its path."""
    yield path, message
    for field, value in message.ListFields():
        if _element_type(field) == FieldDescriptor.TYPE_MESSAGE:
            for part_path, part in _elements(field, value, path):
                yield from _messages(part, part_path)


def _bytes_fields(message: Message, path: str) -> Iterator[tuple[str, bytes]]:
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_BYTES:
            yield from _elements(field, value, path)


def _elements(field: FieldDescriptor, value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The field's value, or each of a repeated field's, with its path such as "chat.messages[1]" or "fields[key]"."""
    name = _join(path, field.name)
    if _is_map(field):
        yield from ((f"{name}[{key}]", element) for key, element in value.items())
    elif field.is_repeated:
        yield from ((f"{name}[{i}]", element) for i, element in enumerate(value))
    else:
        yield name, value


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _element_type(field: FieldDescriptor) -> int:
    """Of a map, the type of its values."""
    if field.message_type is not None and _is_map(field):
        return field.message_type.fields_by_name["value"].type
    return field.type


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
