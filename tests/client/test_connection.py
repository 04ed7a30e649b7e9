"""What every call carries, and what cannot be carried."""

import pytest
from treadle import TLS, Client
from treadle.connection import Connection

from tests.client.scripted import ScriptedServer


def test_the_token_and_metadata_go_with_every_call_and_the_client_names_itself(server: ScriptedServer) -> None:
    with Client(server.address, token="secret", metadata={"x-tenant": "a"}) as client:
        list(client.generate("hi"))
        client.complete("hi")
    for asked in server.asked:
        assert asked.metadata["authorization"] == "Bearer secret"
        assert asked.metadata["x-tenant"] == "a"
        assert "treadle-python/" in str(asked.metadata["user-agent"])


@pytest.mark.parametrize("token", ["a\nb", "é"])
def test_a_token_that_no_header_carries_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII") as raised:
        Client(token=token)
    assert token not in str(raised.value)


def test_secrets_are_not_in_the_repr() -> None:
    assert "secret" not in repr(Connection(token="secret", tls=TLS(certificate_chain=b"c", private_key=b"secret")))


def test_a_certificate_needs_its_key() -> None:
    with pytest.raises(ValueError, match="need each other"):
        TLS(certificate_chain=b"c")
