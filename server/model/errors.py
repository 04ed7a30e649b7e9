"""What can be wrong with a model, before any request is taken."""


class ModelNotServable(Exception):
    """The model cannot be loaded, or could not be served correctly; the message is one line with the reason."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))

    @classmethod
    def because(cls, what: str, error: Exception) -> "ModelNotServable":
        """`what` went wrong by `error`, of which the first line that says anything is told."""
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return cls(f"{what}: {lines[0] if lines else type(error).__name__}")
