"""Bearer tokens of a file, over real sockets."""

import asyncio
import hashlib
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from server.rpc.security import new_token
from server.rpc.security.caller import Proof, Scope
from server.rpc.security.errors import BadContent, BadSecurityFile
from server.rpc.security.security import Security
from server.rpc.security.settings import SecuritySettings
from server.rpc.security.tokens import MAX_TOKENS, Tokens
from tests.server.rpc.security.callers import bearer, code_of, is_served, refused, secured, token_line
from tests.server.rpc.serving import PATIENCE, Serving, Start, eventually, generate_request

UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
TOKEN = "treadle_right"


@pytest.fixture
def tokens_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text("# people\n\n" + token_line("alice", TOKEN) + token_line("operator", "treadle_op", "admin"))
    return path


@pytest.fixture
async def serving(start: Start, tokens_file: Path) -> Serving:
    return await (await start(secured(SecuritySettings(tokens_file=tokens_file)))).ready()


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_a_right_token_is_served(serving: Serving, scheme: str) -> None:
    assert await is_served(serving, (("authorization", f"{scheme} {TOKEN}"),))


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ((), "MISSING_CREDENTIAL"),
        ((("x-request-id", "x" * 200),), "MISSING_CREDENTIAL"),
        (bearer("treadle_wrong"), "WRONG_CREDENTIAL"),
        (bearer(TOKEN + "x"), "WRONG_CREDENTIAL"),
        (bearer(TOKEN[:-1]), "WRONG_CREDENTIAL"),
        (bearer(""), "WRONG_CREDENTIAL"),
        ((("authorization", TOKEN),), "WRONG_CREDENTIAL"),
        ((("authorization", f"Basic {TOKEN}"),), "WRONG_CREDENTIAL"),
        ((("authorization", ""),), "WRONG_CREDENTIAL"),
        (bearer(TOKEN) + bearer(TOKEN), "WRONG_CREDENTIAL"),
        (bearer(hashlib.sha256(TOKEN.encode()).hexdigest()), "WRONG_CREDENTIAL"),
    ],
)
async def test_a_missing_or_wrong_token_is_unauthenticated(
    serving: Serving, metadata: tuple[tuple[str, str], ...], reason: str
) -> None:
    refusal = await refused(serving, metadata)
    assert (refusal.code, refusal.reason) == (UNAUTHENTICATED, reason)
    assert "x-request-id" in refusal.trailing


async def test_a_token_of_another_scope_is_forbidden(serving: Serving) -> None:
    refusal = await refused(serving, bearer("treadle_op"))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.PERMISSION_DENIED, "SCOPE_MISSING")


async def test_the_file_is_read_again_when_it_changes(serving: Serving, tokens_file: Path) -> None:
    security = serving.server._security
    tokens_file.write_text(token_line("bob", "treadle_new"))
    security.refresh()
    assert await is_served(serving, bearer("treadle_new"))
    assert (await refused(serving, bearer(TOKEN))).reason == "WRONG_CREDENTIAL"
    tokens_file.write_text("bob:treadle_new")
    security.refresh()
    assert await is_served(serving, bearer("treadle_new"))
    tokens_file.write_text("")
    security.refresh()
    assert (await refused(serving, bearer("treadle_new"))).reason == "WRONG_CREDENTIAL"


async def test_a_removed_token_is_refused_without_anybody_asking_for_a_refresh(
    serving: Serving, tokens_file: Path
) -> None:
    tokens_file.write_text("")
    metadata = bearer(TOKEN)
    async with asyncio.timeout(PATIENCE):
        while await code_of(serving.stub.Generate(generate_request(), metadata=metadata)) is grpc.StatusCode.OK:
            pass
    assert (await refused(serving, metadata)).code is UNAUTHENTICATED


async def test_the_log_names_the_identity_and_never_a_token(serving: Serving, tokens_file: Path) -> None:
    with capture_logs() as lines:
        await is_served(serving, bearer(TOKEN))
        await refused(serving, bearer("treadle_wrong"))
        await refused(serving, (("authorization", "treadle_malformed"),))
        tokens_file.write_text("alice:treadle_in_the_clear")
        serving.server._security.refresh()
        await eventually(lambda: len(lines) == 4)
    assert lines[0]["identity"] == "token:alice"
    assert [line.get("reason") for line in lines] == [None, "WRONG_CREDENTIAL", "WRONG_CREDENTIAL", None]
    assert "treadle_" not in str(lines)
    assert TOKEN not in str(serving.server._security.__dict__)


def test_an_identity_is_not_that_of_another_proof_with_the_same_name() -> None:
    caller = Tokens.parse(token_line("alice", TOKEN).encode()).caller(TOKEN)
    assert caller is not None
    assert (caller.proof, caller.identity) == (Proof.TOKEN, "token:alice")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"alice", "line 1 must be name:hash"),
        (b"\n# x\nalice:secret", "line 3 must be name:hash"),
        (b"al ice:" + b"0" * 64, "line 1 must be name:hash"),
        (b"alice:" + b"A" * 64, "lower-case"),
        (b"alice:" + b"0" * 64 + b":generate:x", "line 1 must be name:hash"),
        (b"alice:" + b"0" * 64 + b":secret", "line 1 has an unknown scope"),
        (b"alice:" + b"0" * 64 + b":", "line 1 has an unknown scope"),
        (b"\xff", "UTF-8"),
        (b"a:" + b"0" * 64 + b"\nb:" + b"0" * 64, "the same hash twice"),
        ("".join(token_line("a", str(i)) for i in range(MAX_TOKENS + 1)).encode(), "at most 1000"),
    ],
)
def test_a_bad_line_is_named_and_not_shown(content: bytes, problem: str) -> None:
    with pytest.raises(BadContent, match=problem) as refused:
        Tokens.parse(content)
    assert "secret" not in str(refused.value)


def test_a_file_that_is_not_there_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(BadSecurityFile, match=r"nowhere: No such file"):
        Security(SecuritySettings(tokens_file=tmp_path / "nowhere"))


@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.sets(st.sampled_from(Scope), min_size=1)))
def test_every_token_is_its_owners_and_nothing_else_is_one(owners: dict[str, set[Scope]]) -> None:
    lines = (token_line(name, f"of {name}", ",".join(each.value for each in scopes)) for name, scopes in owners.items())
    tokens = Tokens.parse("".join(lines).encode())
    for name, scopes in owners.items():
        caller = tokens.caller(f"of {name}")
        assert caller is not None
        assert (caller.name, caller.scopes) == (name, frozenset(scopes))
        assert tokens.caller(name) is None


def test_a_new_token_goes_to_its_owner_and_its_line_to_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    new_token.main(["alice", "--scopes", "generate,admin"])
    printed = capsys.readouterr()
    token = printed.err.splitlines()[-1]
    caller = Tokens.parse(printed.out.encode()).caller(token)
    assert caller is not None
    assert (caller.name, caller.scopes) == ("alice", frozenset(Scope))
    assert token not in printed.out
    assert len(token) > 40


@pytest.mark.parametrize("arguments", [["two words"], ["alice", "--scopes", "all"], []])
def test_a_token_for_nobody_or_of_an_unknown_scope_is_not_made(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        new_token.main(arguments)
    assert exit_.value.code == 2
    assert capsys.readouterr().out == ""
