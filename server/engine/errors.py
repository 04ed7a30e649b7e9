"""What can be wrong with a request or with the engine, as types.

`server/rpc/statuses.py` says what each is on the wire.
"""


class EngineError(Exception):
    """Base of every refusal the engine makes; its message is fit for the client."""


class InvalidArgument(EngineError):
    """A field of a request has a value it must not have.

    `field` is the path the client knows it by, such as "sampling.temperature"; `limit` says what is allowed.
    """

    def __init__(self, field: str, value: object, limit: str) -> None:
        super().__init__(f"{field} is {value}: {limit}")
        self.field, self.value, self.limit = field, value, limit


class ChatTemplateMissing(EngineError):
    """The model has no chat template, so it takes no chat."""


class TemplateNotAllowed(EngineError):
    """The request brings a chat template of its own, and this server takes none."""


class DuplicateRequestId(EngineError):
    """A request of this id is in flight."""


class QueueFull(EngineError):
    """All slots and all waiting places are taken."""


class SlowReader(EngineError):
    """The client left more tokens unread than the server keeps for it."""


class NotReady(EngineError):
    """The model is not loaded and warm yet."""


class Draining(EngineError):
    """The server is shutting down and takes no more work, or could not finish this request before its grace ended."""


class StepFailed(EngineError):
    """The model could not compute this request's step."""


class ConstraintFailed(InvalidArgument):
    """What the field asks leaves no token to follow the output so far, which was not to be seen beforehand."""


class EngineDied(EngineError):
    """The scheduler thread ended by an error; nothing runs any more."""
