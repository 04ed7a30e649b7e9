"""Server reflection, grpc.reflection.v1 and v1alpha: clients such as grpcurl read the API from the server itself.

v1 is v1alpha under another package name: its messages have the same fields with the same numbers, so one servicer
answers both. See https://github.com/grpc/grpc-proto/blob/master/grpc/reflection/v1/reflection.proto.
"""

from collections.abc import Iterable

import grpc
from google.protobuf import descriptor_pool, text_format
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.reflection import aio

ALPHA = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"].full_name
V1 = ALPHA.replace("v1alpha", "v1")


def serve_reflection(server: grpc.aio.Server, services: Iterable[str]) -> None:
    """Answers questions about these services, whose descriptors are in the default pool, and about reflection."""
    _describe_v1(descriptor_pool.Default())
    servicer = aio.ReflectionServicer((*services, ALPHA, V1), pool=Symbols(descriptor_pool.Default()))
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)
    info = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(V1, {"ServerReflectionInfo": info}),))


class Symbols:
    """A descriptor pool as the stock servicer asks it, which finds methods by their names too, as the protocol says."""

    def __init__(self, pool: descriptor_pool.DescriptorPool) -> None:
        self._pool = pool
        self.FindFileByName = pool.FindFileByName
        self.FindMessageTypeByName = pool.FindMessageTypeByName
        self.FindExtensionByNumber = pool.FindExtensionByNumber
        self.FindAllExtensions = pool.FindAllExtensions

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:  # noqa: N802 - the pool's name
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            return self._pool.FindMethodByName(symbol).containing_service.file


def _describe_v1(pool: descriptor_pool.DescriptorPool) -> None:
    """Adds v1's descriptors, as importing a generated module of it would; nothing where such a one has been."""
    try:
        pool.FindServiceByName(V1)
    except KeyError:
        pool.AddSerializedFile(_v1_file().SerializeToString())


def _v1_file() -> FileDescriptorProto:
    alpha = FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(alpha)
    v1 = text_format.Parse(text_format.MessageToString(alpha).replace("v1alpha", "v1"), FileDescriptorProto())
    v1.name = "grpc/reflection/v1/reflection.proto"
    v1.options.ClearField("deprecated")
    return v1
