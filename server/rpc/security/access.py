"""What a method asks of its caller: one table. A method that is not in it is refused."""

from collections.abc import Mapping
from enum import Enum, auto

from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from treadle.v1 import generation_pb2 as pb

from server.rpc.security.caller import Scope


class Access(Enum):
    """Whom a method is for."""

    ANYBODY = auto()
    ANY_IDENTITY = auto()
    """Whoever proves an identity, whatever its scopes."""
    GENERATE = auto()
    ADMIN = auto()

    @property
    def scope(self) -> Scope | None:
        """The scope a caller needs."""
        return {Access.GENERATE: Scope.GENERATE, Access.ADMIN: Scope.ADMIN}.get(self)


GENERATION = pb.DESCRIPTOR.services_by_name["GenerationService"].full_name
HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
REFLECTION = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"].full_name
VLLM_ENGINE = "vllm.grpc.engine.VllmEngine"
"""Its descriptors are there only where it can be served."""
REFLECTION_V1 = "grpc.reflection.v1.ServerReflection"


def access_table(*, is_health_open: bool, is_reflection_open: bool) -> Mapping[str, Access]:
    """By the method's path, such as "/treadle.v1.GenerationService/Generate"."""
    health = Access.ANYBODY if is_health_open else Access.ANY_IDENTITY
    reflection = Access.ANYBODY if is_reflection_open else Access.ANY_IDENTITY
    return {
        f"/{GENERATION}/Generate": Access.GENERATE,
        f"/{GENERATION}/Complete": Access.GENERATE,
        f"/{GENERATION}/Tokenize": Access.GENERATE,
        f"/{GENERATION}/Detokenize": Access.GENERATE,
        f"/{GENERATION}/GetModel": Access.GENERATE,
        f"/{GENERATION}/GetLoad": Access.GENERATE,
        f"/{VLLM_ENGINE}/Generate": Access.GENERATE,
        f"/{VLLM_ENGINE}/Abort": Access.GENERATE,
        f"/{VLLM_ENGINE}/GetModelInfo": Access.GENERATE,
        f"/{VLLM_ENGINE}/GetServerInfo": Access.GENERATE,
        f"/{VLLM_ENGINE}/GetLoads": Access.GENERATE,
        f"/{VLLM_ENGINE}/GetTokenizer": Access.GENERATE,
        f"/{VLLM_ENGINE}/HealthCheck": health,
        f"/{HEALTH}/Check": health,
        f"/{HEALTH}/List": health,
        f"/{HEALTH}/Watch": health,
        f"/{REFLECTION}/ServerReflectionInfo": reflection,
        f"/{REFLECTION_V1}/ServerReflectionInfo": reflection,
    }
