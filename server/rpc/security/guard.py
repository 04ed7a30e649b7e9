"""The guard: what every call passes before its method, whatever service it is of.

A refused call's message is neither parsed nor even read, and nothing of it reaches the engine.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import grpc

from server.rpc.call import Context, OpenCalls
from server.rpc.errors import MethodNotAllowed, ScopeMissing
from server.rpc.security.access import Access
from server.rpc.security.bearers import Bearers
from server.rpc.security.caller import CERTIFICATE_SCOPES, bearer

MaybeHandler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"


class Guard(grpc.aio.ServerInterceptor):
    """`bearers` is None where the connection's client certificate is the credential."""

    def __init__(self, access: Mapping[str, Access], bearers: Bearers | None, calls: OpenCalls) -> None:
        self._access, self._bearers, self._calls = access, bearers, calls

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[MaybeHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> MaybeHandler:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None  # nothing is served there, which gRPC says
        try:
            self._check(handler_call_details)
        except Exception as error:
            return self._refusing(handler_call_details.method, error)
        return handler

    def _check(self, details: grpc.HandlerCallDetails) -> None:
        """Raises what the call is refused with."""
        access = self._access.get(details.method)
        if access is Access.ANYBODY:
            return
        scopes = CERTIFICATE_SCOPES
        if self._bearers is not None:
            caller = self._bearers.caller(details.invocation_metadata or ())
            bearer.set(caller)
            scopes = caller.scopes
        if access is None:
            raise MethodNotAllowed("nobody may call this method here")
        if access.scope is not None and access.scope not in scopes:
            raise ScopeMissing(f"the caller needs the scope {access.scope.value!r}")

    def _refusing(self, method: str, error: Exception) -> "grpc.RpcMethodHandler[Any, Any]":
        """A handler of a stream of messages, since gRPC gives it the call before any message is there."""

        service, _, rpc = method.removeprefix("/").rpartition("/")

        async def refuse(_: object, context: Context) -> None:
            async with self._calls.open(rpc, context, refusal=error, service=service):
                pass

        return grpc.stream_stream_rpc_method_handler(refuse)
