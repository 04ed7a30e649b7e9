from tests.server.rpc.conftest import start

__all__ = ["start"]
