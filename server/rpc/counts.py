"""The number of elements in a repeated field: checked before a list is made of them, since a message may carry
millions."""

from server.engine.errors import InvalidArgument


def check_count(field: str, count: int, limit: int) -> None:
    """Raises InvalidArgument where there are more than `limit`."""
    if count > limit:
        raise InvalidArgument(field, f"{count} long", f"must be at most {limit}")
