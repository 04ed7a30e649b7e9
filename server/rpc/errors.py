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


class TooManyWaiting(CallError):
    """As many constraints wait to be compiled, or templates of requests to be rendered, as the server lets wait."""


class EndedWithoutResult(CallError):
    """The engine ended a stream without a Result or a Failure."""


class MissingCredential(CallError):
    """The call carries no credential, and its method asks for one."""


class WrongCredential(CallError):
    """The call's credential is not one this server takes."""


class ExpiredCredential(CallError):
    """The call's credential was good until its time had passed."""


class ScopeMissing(CallError):
    """The caller is known, and this method is not for it."""


class MethodNotAllowed(CallError):
    """The method is served, and nobody may call it here."""


class IdentityTooBusy(CallError):
    """The identity has as many requests open as it may."""


class IdentityTooManyWaiting(CallError):
    """The identity has as many requests waiting as it may, and all slots are taken."""


class IdentityTooManyTokens(CallError):
    """The identity has had as many tokens in the last minute as it may; `retry_after` is in seconds."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after
