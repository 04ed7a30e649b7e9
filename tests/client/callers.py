"""The two clients behind one face, so that what must hold for both is tested once."""

import asyncio
from dataclasses import dataclass, field
from typing import Protocol, Unpack

from treadle import AsyncClient, Client, Completion, Event, GenerateOptions, RetryPolicy

QUICK = RetryPolicy(max_attempts=4, initial_backoff=0.01, max_backoff=1.0)


@dataclass
class Heard:
    """What came of a stream before it ended."""

    events: list[Event] = field(default_factory=list)


class Caller(Protocol):
    heard: Heard

    def generate(
        self,
        prompt: str,
        *,
        timeout: float | None = None,
        retry: RetryPolicy = QUICK,
        **options: Unpack[GenerateOptions],
    ) -> list[Event]: ...

    def complete(self, prompt: str, *, timeout: float | None = None) -> Completion: ...


@dataclass
class SyncCaller:
    address: str
    heard: Heard = field(default_factory=Heard)

    def generate(
        self,
        prompt: str,
        *,
        timeout: float | None = None,
        retry: RetryPolicy = QUICK,
        **options: Unpack[GenerateOptions],
    ) -> list[Event]:
        with Client(self.address, retry=retry) as client:
            for event in client.generate(prompt, timeout=timeout, **options):
                self.heard.events.append(event)
        return self.heard.events

    def complete(self, prompt: str, *, timeout: float | None = None) -> Completion:
        with Client(self.address, retry=QUICK) as client:
            return client.complete(prompt, timeout=timeout)


@dataclass
class AsyncCaller:
    address: str
    heard: Heard = field(default_factory=Heard)

    def generate(
        self,
        prompt: str,
        *,
        timeout: float | None = None,
        retry: RetryPolicy = QUICK,
        **options: Unpack[GenerateOptions],
    ) -> list[Event]:
        async def run() -> None:
            async with AsyncClient(self.address, retry=retry) as client:
                async for event in client.generate(prompt, timeout=timeout, **options):
                    self.heard.events.append(event)

        asyncio.run(run())
        return self.heard.events

    def complete(self, prompt: str, *, timeout: float | None = None) -> Completion:
        async def run() -> Completion:
            async with AsyncClient(self.address, retry=QUICK) as client:
                return await client.complete(prompt, timeout=timeout)

        return asyncio.run(run())
