"""The Counters: what the scheduler has done since it started, as plain numbers that any thread may read."""

from dataclasses import dataclass

from server.engine.histogram import Histogram, HistogramSnapshot

MILLISECONDS = (1, 2.5, 5, 7.5, 10, 15, 20, 30, 40, 50, 75, 100, 150, 200, 250, 300, 500, 1_000, 2_500, 5_000, 10_000)
SECONDS = tuple(milliseconds / 1000 for milliseconds in MILLISECONDS)
TOKENS = tuple(float(1 << power) for power in range(14))


@dataclass(frozen=True, slots=True)
class Counts:
    """The Counters at one moment."""

    prompt_tokens: int
    """Of the requests that were admitted."""
    generated_tokens: int
    prefix_queried_tokens: int
    """Of the prompts that were looked for in the prefix cache."""
    prefix_found_tokens: int
    preemptions: int
    step_durations: HistogramSnapshot
    """Seconds the model took for a step."""
    step_tokens: HistogramSnapshot
    """Tokens computed by a step."""
    token_gaps: HistogramSnapshot
    """Seconds from each token of a generation to the next."""


class Counters:
    """The scheduler's thread counts; any thread takes a snapshot, whose numbers may be a step apart."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.prefix_queried_tokens = 0
        self.prefix_found_tokens = 0
        self.preemptions = 0
        self.step_durations = Histogram(SECONDS)
        self.step_tokens = Histogram(TOKENS)
        self.token_gaps = Histogram(SECONDS)

    def snapshot(self) -> Counts:
        return Counts(
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.generated_tokens,
            prefix_queried_tokens=self.prefix_queried_tokens,
            prefix_found_tokens=self.prefix_found_tokens,
            preemptions=self.preemptions,
            step_durations=self.step_durations.snapshot(),
            step_tokens=self.step_tokens.snapshot(),
            token_gaps=self.token_gaps.snapshot(),
        )
