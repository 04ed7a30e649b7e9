"""What can be wrong with a call before or after the engine has its say, as types."""


class CallError(Exception):
    """Base of every refusal the rpc face makes; its message is fit for the client."""


class MessageTooLarge(CallError):
    """The request message has more bytes than the server takes."""


class MalformedMessage(CallError):
    """The request message is not a protobuf message of the method's type."""


class TooManyOpenCalls(CallError):
    """As many calls are open as the server takes, running, waiting, being tokenized or being read."""


class TooManyOpenBytes(CallError):
    """The request messages of the open calls have as many bytes in all as the server takes."""


class EndedWithoutResult(CallError):
    """The engine ended a stream without a Result or a Failure."""
