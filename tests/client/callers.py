"""The two clients behind one face, so that what must hold for both is tested once."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, Unpack

from treadle import (
    AsyncClient,
    Client,
    CompleteOptions,
    Completion,
    Event,
    GenerateOptions,
    Input,
    Result,
    RetryPolicy,
    Tokenization,
    TokenizeOptions,
)

QUICK = RetryPolicy(max_attempts=4, initial_backoff=0.01, max_backoff=1.0)


@dataclass
class Heard:
    """What came of a stream before it ended."""

    events: list[Event] = field(default_factory=list)
    results: tuple[Result, ...] = ()


class Caller(Protocol):
    heard: Heard

    def generate(
        self,
        prompt: str | None = None,
        *,
        timeout: float | None = None,
        retry: RetryPolicy = QUICK,
        **options: Unpack[GenerateOptions],
    ) -> list[Event]: ...

    def text(self, prompt: str, **options: Unpack[GenerateOptions]) -> str: ...

    def complete(
        self, prompt: str | None = None, *, timeout: float | None = None, **options: Unpack[CompleteOptions]
    ) -> Completion: ...

    def complete_all(
        self, prompt: str | None = None, *, inputs: Sequence[Input] | None = None, **options: Unpack[CompleteOptions]
    ) -> tuple[Completion, ...]: ...

    def tokenize(self, text: str | None = None, **options: Unpack[TokenizeOptions]) -> Tokenization: ...


@dataclass
class SyncCaller:
    address: str
    heard: Heard = field(default_factory=Heard)

    def generate(
        self,
        prompt: str | None = None,
        *,
        timeout: float | None = None,
        retry: RetryPolicy = QUICK,
        **options: Unpack[GenerateOptions],
    ) -> list[Event]:
        with Client(self.address, retry=retry) as client:
            stream = client.generate(prompt, timeout=timeout, **options)
            for event in stream:
                self.heard.events.append(event)
            self.heard.results = stream.results
        return self.heard.events

    def text(self, prompt: str, **options: Unpack[GenerateOptions]) -> str:
        with Client(self.address, retry=QUICK) as client:
            return "".join(client.generate(prompt, **options).text())

    def complete(
        self, prompt: str | None = None, *, timeout: float | None = None, **options: Unpack[CompleteOptions]
    ) -> Completion:
        with Client(self.address, retry=QUICK) as client:
            return client.complete(prompt, timeout=timeout, **options)

    def complete_all(
        self, prompt: str | None = None, *, inputs: Sequence[Input] | None = None, **options: Unpack[CompleteOptions]
    ) -> tuple[Completion, ...]:
        with Client(self.address, retry=QUICK) as client:
            return client.complete_all(prompt, inputs=inputs, **options)

    def tokenize(self, text: str | None = None, **options: Unpack[TokenizeOptions]) -> Tokenization:
        with Client(self.address, retry=QUICK) as client:
            return client.tokenize(text, **options)


@dataclass
class AsyncCaller:
    address: str
    heard: Heard = field(default_factory=Heard)

    def generate(
        self,
        prompt: str | None = None,
        *,
        timeout: float | None = None,
        retry: RetryPolicy = QUICK,
        **options: Unpack[GenerateOptions],
    ) -> list[Event]:
        async def run() -> None:
            async with AsyncClient(self.address, retry=retry) as client:
                stream = client.generate(prompt, timeout=timeout, **options)
                async for event in stream:
                    self.heard.events.append(event)
                self.heard.results = stream.results

        asyncio.run(run())
        return self.heard.events

    def text(self, prompt: str, **options: Unpack[GenerateOptions]) -> str:
        async def run() -> str:
            async with AsyncClient(self.address, retry=QUICK) as client:
                return "".join([piece async for piece in client.generate(prompt, **options).text()])

        return asyncio.run(run())

    def complete(
        self, prompt: str | None = None, *, timeout: float | None = None, **options: Unpack[CompleteOptions]
    ) -> Completion:
        async def run() -> Completion:
            async with AsyncClient(self.address, retry=QUICK) as client:
                return await client.complete(prompt, timeout=timeout, **options)

        return asyncio.run(run())

    def complete_all(
        self, prompt: str | None = None, *, inputs: Sequence[Input] | None = None, **options: Unpack[CompleteOptions]
    ) -> tuple[Completion, ...]:
        async def run() -> tuple[Completion, ...]:
            async with AsyncClient(self.address, retry=QUICK) as client:
                return await client.complete_all(prompt, inputs=inputs, **options)

        return asyncio.run(run())

    def tokenize(self, text: str | None = None, **options: Unpack[TokenizeOptions]) -> Tokenization:
        async def run() -> Tokenization:
            async with AsyncClient(self.address, retry=QUICK) as client:
                return await client.tokenize(text, **options)

        return asyncio.run(run())
