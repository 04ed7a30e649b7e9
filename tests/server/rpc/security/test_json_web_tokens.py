"""JSON Web Tokens, over real sockets and, where it is about their every form, by themselves."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from server.rpc.errors import ExpiredCredential, WrongCredential
from server.rpc.security.caller import Scope
from server.rpc.security.errors import BadContent
from server.rpc.security.json_web_tokens import KeySet, Verifier
from server.rpc.security.settings import JWTSettings, SecuritySettings
from tests.server.rpc.security.callers import bearer, is_served, refused, secured, token_line
from tests.server.rpc.serving import Serving, Start, eventually

AUDIENCE, ISSUER = "treadle", "https://issuer.test"
DAY = 86_400
"""Seconds: longer than from collecting the tests to running them."""
RSA_KEY = rsa.generate_private_key(65537, 2048)
Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


@dataclass
class Issuer:
    """Signs tokens and publishes its key."""

    key: Key = RSA_KEY
    algorithm: str = "RS256"
    key_id: str = "first"
    claims: dict[str, Any] = field(
        default_factory=lambda: {"sub": "alice", "aud": AUDIENCE, "iss": ISSUER, "scope": "generate openid"}
    )

    def member(self) -> dict[str, Any]:
        """The public key, as a member of a key set."""
        kind = jwt.get_algorithm_by_name(self.algorithm)
        public = kind.to_jwk(self.key.public_key(), as_dict=True)
        return {**public, "kid": self.key_id, "alg": self.algorithm, "use": "sig"}

    def token(self, /, key_id: str | None = "first", **changed: object) -> str:
        """With the claims changed as said; None leaves one out."""
        claims = {"exp": int(time.time()) + DAY, **self.claims, **changed}
        headers = {} if key_id is None else {"kid": key_id}
        present = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(present, self.key, self.algorithm, headers=headers)


def key_set(*members: Mapping[str, Any]) -> bytes:
    return json.dumps({"keys": members}).encode()


def encoded(part: object) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")


@pytest.fixture
def jwks_file(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    path.write_bytes(key_set(Issuer().member()))
    return path


@pytest.fixture
async def serving(start: Start, jwks_file: Path) -> Serving:
    settings = SecuritySettings(jwt=JWTSettings(jwks_file, AUDIENCE, ISSUER))
    return await (await start(secured(settings))).ready()


async def test_a_good_token_is_served(serving: Serving) -> None:
    assert await is_served(serving, bearer(Issuer().token()))
    assert await is_served(serving, bearer(Issuer().token(aud=["other", AUDIENCE])))
    assert await is_served(serving, bearer(Issuer().token(key_id=None)))
    assert await is_served(serving, bearer(Issuer().token(exp=int(time.time()) - 2)))


def with_none() -> str:
    return b".".join((encoded({"alg": "none", "kid": "first"}), encoded(all_claims()), b"")).decode()


def with_the_public_key_as_a_secret() -> str:
    """The old confusion of algorithms: an HMAC under what everybody knows."""
    secret = RSA_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signed = encoded({"alg": "HS256", "typ": "JWT", "kid": "first"}) + b"." + encoded(all_claims())
    signature = base64.urlsafe_b64encode(hmac.digest(secret, signed, hashlib.sha256)).rstrip(b"=")
    return (signed + b"." + signature).decode()


def with_another_payload() -> str:
    header, _, signature = Issuer().token().encode().split(b".")
    return b".".join((header, encoded({**all_claims(), "sub": "mallory"}), signature)).decode()


def with_a_key_of_its_own() -> str:
    key = ed25519.Ed25519PrivateKey.generate()
    header = {"kid": "first", "jwk": Issuer(key, "EdDSA").member()}
    return jwt.encode(all_claims(), key, "EdDSA", headers=header)


def all_claims() -> dict[str, Any]:
    return {**Issuer().claims, "exp": int(time.time()) + DAY}


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (Issuer().token(exp=1), "EXPIRED_CREDENTIAL"),
        (Issuer().token(exp=None), "WRONG_CREDENTIAL"),
        (Issuer().token(nbf=int(time.time()) + DAY), "WRONG_CREDENTIAL"),
        (Issuer().token(aud="other"), "WRONG_CREDENTIAL"),
        (Issuer().token(aud=None), "WRONG_CREDENTIAL"),
        (Issuer().token(iss="https://other.test"), "WRONG_CREDENTIAL"),
        (Issuer().token(iss=None), "WRONG_CREDENTIAL"),
        (Issuer().token(sub=None), "WRONG_CREDENTIAL"),
        (Issuer().token(sub="two\nlines"), "WRONG_CREDENTIAL"),
        (Issuer().token(sub="x" * 257), "WRONG_CREDENTIAL"),
        (Issuer().token(scope=["generate"]), "WRONG_CREDENTIAL"),
        (Issuer().token(key_id="second"), "WRONG_CREDENTIAL"),
        (Issuer(rsa.generate_private_key(65537, 2048)).token(), "WRONG_CREDENTIAL"),
        (Issuer(algorithm="PS256").token(), "WRONG_CREDENTIAL"),
        (with_none(), "WRONG_CREDENTIAL"),
        (with_the_public_key_as_a_secret(), "WRONG_CREDENTIAL"),
        (with_another_payload(), "WRONG_CREDENTIAL"),
        (with_a_key_of_its_own(), "WRONG_CREDENTIAL"),
        (Issuer().token()[:-3], "WRONG_CREDENTIAL"),
        ("[" * 6000 + ".x.x", "WRONG_CREDENTIAL"),
        (base64.urlsafe_b64encode(b"[" * 5000).decode() + ".eA.eA", "WRONG_CREDENTIAL"),
    ],
    ids=lambda value: value if len(value) < 30 else "token",
)
async def test_any_other_token_is_unauthenticated(serving: Serving, token: str, reason: str) -> None:
    refusal = await refused(serving, bearer(token))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAUTHENTICATED, reason)
    assert token not in str(refusal)


@pytest.mark.parametrize("scope", [None, "", "openid admin", "generates", "GENERATE"])
async def test_a_token_without_the_scope_is_forbidden(serving: Serving, scope: str | None) -> None:
    refusal = await refused(serving, bearer(Issuer().token(scope=scope)))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.PERMISSION_DENIED, "SCOPE_MISSING")


async def test_keys_are_read_again_when_they_change_and_kept_when_the_file_breaks(
    serving: Serving, jwks_file: Path
) -> None:
    security = serving.server._security
    second = Issuer(ec.generate_private_key(ec.SECP256R1()), "ES256", "second")
    jwks_file.write_bytes(key_set(Issuer().member(), second.member()))
    security.refresh()
    assert await is_served(serving, bearer(Issuer().token()))
    assert await is_served(serving, bearer(second.token("second")))
    assert (await refused(serving, bearer(second.token(None)))).reason == "WRONG_CREDENTIAL"
    jwks_file.write_bytes(b"{")
    security.refresh()
    assert await is_served(serving, bearer(second.token("second")))
    jwks_file.write_bytes(key_set(second.member()))
    security.refresh()
    assert (await refused(serving, bearer(Issuer().token()))).reason == "WRONG_CREDENTIAL"


async def test_tokens_of_a_file_and_json_web_tokens_go_together(start: Start, jwks_file: Path, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(token_line("bob", "treadle_bob"))
    settings = SecuritySettings(tokens_file=tmp_path / "tokens", jwt=JWTSettings(jwks_file, AUDIENCE))
    serving = await (await start(secured(settings))).ready()
    assert await is_served(serving, bearer("treadle_bob"))
    assert await is_served(serving, bearer(Issuer().token(iss=None)))
    assert (await refused(serving, bearer("treadle_eve"))).reason == "WRONG_CREDENTIAL"


async def test_the_log_names_the_subject_and_shows_no_part_of_a_token(serving: Serving) -> None:
    good, expired = Issuer().token(), Issuer().token(exp=1)
    with capture_logs() as lines:
        await is_served(serving, bearer(good))
        await refused(serving, bearer(expired))
        await eventually(lambda: len(lines) == 2)
    assert [line.get("identity") for line in lines] == ["jwt:alice", None]
    assert not any(part in str(lines) for token in (good, expired) for part in token.split("."))


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        (RSA_KEY, "RS512"),
        (RSA_KEY, "PS256"),
        (ec.generate_private_key(ec.SECP384R1()), "ES384"),
        (ed25519.Ed25519PrivateKey.generate(), "EdDSA"),
    ],
)
def test_every_asymmetric_algorithm_verifies(key: Key, algorithm: str) -> None:
    issuer = Issuer(key, algorithm)
    caller = Verifier(AUDIENCE, None).caller(issuer.token(), KeySet.parse(key_set(issuer.member())))
    assert (caller.identity, caller.scopes) == ("jwt:alice", frozenset({Scope.GENERATE}))


SYMMETRIC = {"kty": "oct", "k": "c2VjcmV0c2VjcmV0", "alg": "HS256", "kid": "x"}
PRIVATE = {**jwt.get_algorithm_by_name("RS256").to_jwk(RSA_KEY, as_dict=True), "kid": "x"}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "JSON Web Key Set"),
        (b"[]", "JSON Web Key Set"),
        (b'{"keys": [1]}', "JSON Web Key Set"),
        (b'{"keys": 1}', "JSON Web Key Set"),
        (b"[" * 100_000, "JSON Web Key Set"),
        (b'{"keys": []}', "no key that signs"),
        (key_set({**Issuer().member(), "use": "enc"}), "no key that signs"),
        (key_set(SYMMETRIC), "key 1 has a secret"),
        (key_set(Issuer().member(), PRIVATE), "key 2 has a secret"),
        (key_set({**Issuer().member(), "alg": "HS256"}), "key 1 has an algorithm"),
        (key_set({**Issuer().member(), "alg": "none"}), "key 1 has an algorithm"),
        (key_set({**Issuer().member(), "alg": 1}), "key 1 has an algorithm"),
        (key_set({**Issuer().member(), "alg": "ES256"}), "key 1 is of a kind"),
        (key_set(Issuer(ec.generate_private_key(ec.SECP521R1()), "ES512").member()), "key 1 has an algorithm"),
        (key_set({"kty": "RSA"}), "key 1 is of a kind"),
        (key_set({"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA"}), "key 1 is of a kind"),
        (key_set(Issuer().member(), Issuer().member()), "kid of its own"),
    ],
)
def test_a_key_set_that_cannot_be_used_is_refused_and_not_shown(content: bytes, problem: str) -> None:
    with pytest.raises(BadContent, match=problem) as refused:
        KeySet.parse(content)
    assert "c2VjcmV0" not in str(refused.value)


KEYS = KeySet.parse(key_set(Issuer().member()))
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
HEADERS = st.fixed_dictionaries({"alg": st.sampled_from(["RS256", "none", "HS256", 1, None])}, optional={"kid": JSON})


@given(
    st.text()
    | st.builds(lambda header, payload: (encoded(header) + b"." + encoded(payload) + b".eA").decode(), HEADERS, JSON)
)
def test_whatever_else_is_sent_as_a_token_is_a_wrong_credential(token: str) -> None:
    with pytest.raises(WrongCredential):
        Verifier(AUDIENCE, ISSUER).caller(token, KEYS)


@given(st.dictionaries(st.sampled_from(["exp", "nbf", "iat", "aud", "iss", "sub", "scope"]), JSON, min_size=1))
def test_whatever_an_issuer_signs_is_a_caller_or_a_wrong_credential(changed: dict[str, Any]) -> None:
    token = Issuer().token(**changed) if signable(changed) else "x"
    try:
        caller = Verifier(AUDIENCE, ISSUER).caller(token, KEYS)
    except (WrongCredential, ExpiredCredential):
        return
    assert caller.name.isprintable()


def signable(claims: dict[str, Any]) -> bool:
    """PyJWT itself refuses to sign some claims of a wrong type."""
    try:
        Issuer().token(**claims)
    except (TypeError, ValueError):
        return False
    return True
