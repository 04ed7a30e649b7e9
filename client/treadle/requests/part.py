"""Filling in a request, where what the message cannot carry is refused by the field's name."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from treadle.errors import InvalidRequest, Violation


@dataclass(frozen=True, slots=True)
class Part:
    """A message of a request.

    Its methods leave the field unset for None, and raise InvalidRequest for a value out of the field's range, TypeError
    for one of another type.
    """

    message: Message
    path: str = ""
    """Where the message is in the request: "" or, say, "sampling."."""

    def part(self, name: str) -> "Part":
        return Part(getattr(self.message, name), f"{self.path}{name}.")

    def present(self, name: str) -> "Part":
        """The same; it is there even while nothing is set in it."""
        part = self.part(name)
        part.message.SetInParent()
        return part

    def add(self, name: str) -> "Part":
        """One more of a repeated message."""
        messages = getattr(self.message, name)
        return Part(messages.add(), f"{self.path}{name}[{len(messages) - 1}].")

    def set(self, name: str, value: object) -> None:
        if value is None:
            return
        try:
            setattr(self.message, name, value)
        except ValueError as error:
            raise self.invalid(name, value, _limit(self.message, name)) from error
        except TypeError as error:
            raise TypeError(f"{self.path}{name} is {value!r}: {error}") from error

    def extend(self, name: str, values: Iterable[object] | None) -> None:
        field = getattr(self.message, name)
        for i, value in enumerate(() if values is None else values):
            try:
                field.append(value)
            except ValueError as error:
                raise self.invalid(f"{name}[{i}]", value, _limit(self.message, name)) from error
            except TypeError as error:
                raise TypeError(f"{self.path}{name}[{i}] is {value!r}: {error}") from error

    def set_json(self, name: str, value: Mapping[str, Any] | str | bool | None) -> None:
        """A text is taken as it is; of another value it is the JSON, keys in their order."""
        if value is None or isinstance(value, str):
            self.set(name, value)
            return
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        except ValueError as error:
            raise self.invalid(name, value, "must be JSON, which knows no infinity, NaN or cycle") from error
        except TypeError as error:
            raise TypeError(f"{self.path}{name} is {value!r}: {error}") from error
        self.set(name, text)

    def set_duration(self, name: str, seconds: float | None) -> None:
        if seconds is None:
            return
        try:
            getattr(self.message, name).FromNanoseconds(round(seconds * 1e9))
        except (ValueError, OverflowError) as error:
            raise self.invalid(name, seconds, "must be a finite number of seconds") from error

    def invalid(self, name: str, value: object, limit: str) -> InvalidRequest:
        field, description = self.path + name, f"is {value!a}: {limit}"
        return InvalidRequest(
            f"{field} {description}",
            code="INVALID_ARGUMENT",
            reason="INVALID_ARGUMENT",
            violations=(Violation(field, description),),
        )


def refuse_unknown(options: Iterable[str], known: Iterable[str]) -> None:
    """Raises TypeError for an option that there is not."""
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise TypeError(f"there is no option {', '.join(unknown)}")


def _limit(message: Message, name: str) -> str:
    """What the field's type takes."""
    match message.DESCRIPTOR.fields_by_name[name].type:
        case FieldDescriptor.TYPE_STRING:
            return "must be valid Unicode, without lone surrogates"
        case FieldDescriptor.TYPE_UINT64:
            return f"must be from 0 to {2**64 - 1}"
        case FieldDescriptor.TYPE_SINT32:
            return f"must be from {-(2**31)} to {2**31 - 1}"
        case _:
            return f"must be from 0 to {2**32 - 1}"
