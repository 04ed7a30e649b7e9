"""All that guards a server, assembled from its settings."""

import asyncio
from typing import Any

import grpc

from server.rpc.call import OpenCalls
from server.rpc.security.access import access_table
from server.rpc.security.bearers import Bearers
from server.rpc.security.guard import Guard
from server.rpc.security.json_web_tokens import KeySet, Verifier
from server.rpc.security.limits import Accounts, IdentityLimits
from server.rpc.security.reloaded_files import ReloadedFiles
from server.rpc.security.settings import SecuritySettings
from server.rpc.security.tls import ServerTLS
from server.rpc.security.tokens import Tokens

POLL_INTERVAL = 1.0
"""Seconds between two looks at the files."""


class Security:
    """Raises BadSecurityFile where a file cannot be used."""

    def __init__(self, settings: SecuritySettings) -> None:
        self._settings = settings
        self._files: list[ReloadedFiles[Any]] = []
        self._tls = None if settings.tls is None else ServerTLS(settings.tls)
        if self._tls is not None:
            self._files.append(self._tls.files)
        self._bearers = self._read_bearers()
        self.accounts = self._read_accounts()

    @property
    def credentials(self) -> grpc.ServerCredentials | None:
        """None where nothing is encrypted."""
        return None if self._tls is None else self._tls.credentials

    def interceptors(self, calls: OpenCalls) -> tuple[grpc.aio.ServerInterceptor, ...]:
        if not self._settings.asks_for_credentials:
            return ()
        access = access_table(
            is_health_open=self._settings.is_health_open, is_reflection_open=self._settings.is_reflection_open
        )
        return (Guard(access, self._bearers, calls),)

    async def follow(self) -> None:
        """Keeps what was read from files as they are, until cancelled."""
        while self._files:
            await asyncio.sleep(POLL_INTERVAL)
            await asyncio.to_thread(self.refresh)

    def refresh(self) -> None:
        """Reads what has changed; for a thread that may wait for files."""
        for files in self._files:
            files.refresh()

    def _read_bearers(self) -> Bearers | None:
        settings, tokens, keys, verifier = self._settings, None, None, None
        if settings.tokens_file is not None:
            tokens = ReloadedFiles((settings.tokens_file,), Tokens.parse)
            self._files.append(tokens)
        if settings.jwt is not None:
            keys = ReloadedFiles((settings.jwt.jwks_file,), KeySet.parse)
            self._files.append(keys)
            verifier = Verifier(settings.jwt.audience, settings.jwt.issuer)
        return None if tokens is None and keys is None else Bearers(tokens, keys, verifier)

    def _read_accounts(self) -> Accounts:
        if self._settings.limits_file is None:
            return Accounts(self._settings.limits)
        limits = ReloadedFiles((self._settings.limits_file,), IdentityLimits.parse)
        self._files.append(limits)
        return Accounts(self._settings.limits, limits)
