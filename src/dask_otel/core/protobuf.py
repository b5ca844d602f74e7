"""Writes messages of protobuf whose parts are bytes already, or whose format no package has."""

from __future__ import annotations


def varint(number: int) -> bytes:
    """Return a number in groups of seven bits."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def encoded_fields(*fields: tuple[int, int | bytes]) -> bytes:
    """Return the bytes of fields by number: their values are numbers, or bytes."""
    return b"".join(
        varint(key << 3) + varint(value)
        if isinstance(value, int)
        else varint(key << 3 | 2) + varint(len(value)) + value
        for key, value in fields
    )
