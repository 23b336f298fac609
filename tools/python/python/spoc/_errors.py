"""Exceptions, by the kinds of docs/errors.md."""


class SpocError(Exception):
    """What went wrong. ``kind`` is stable and to be matched on; the message may be reworded."""

    kind = "internal"

    def __init__(self, message, kind=None):
        super().__init__(message)
        if kind is not None:
            self.kind = kind


class NotFoundError(SpocError, FileNotFoundError):
    """No such file, folder or model."""

    def __str__(self):
        return Exception.__str__(self)


class MalformedError(SpocError, ValueError):
    """A weight file that is not what its format prescribes."""


class NoTensorError(SpocError, KeyError):
    """No such tensor in the model."""

    def __str__(self):
        return Exception.__str__(self)


class BadIndexError(SpocError, IndexError):
    """A slice that the tensor does not have."""


class DeviceError(SpocError, RuntimeError):
    """No such device, not enough of its memory, or its driver's refusal."""


class DigestError(SpocError, ValueError):
    """Bytes are not what the manifest says they are."""


class UnsupportedError(SpocError, TypeError):
    """Something that cannot be done here, named in the message."""


class CancelledError(SpocError):
    """The load was ended before its time."""


_CLASSES = {
    "not_found": NotFoundError,
    "no_weights": NotFoundError,
    "missing_shard": NotFoundError,
    "no_tensor": NoTensorError,
    "missing_tensor": NoTensorError,
    "bad_index": BadIndexError,
    "no_device": DeviceError,
    "device_too_small": DeviceError,
    "out_of_device_memory": DeviceError,
    "digest_mismatch": DigestError,
    "unsupported": UnsupportedError,
    "cancelled": CancelledError,
}

#: Kinds of the sections "Headers" and "Finding the model" of docs/errors.md that blame a file's contents.
_MALFORMED = {
    "header_too_small",
    "header_too_large",
    "invalid_header",
    "bad_magic",
    "unsupported_format",
    "unsupported_version",
    "unsupported_endianness",
    "bad_utf8",
    "bad_dtype",
    "bad_value_type",
    "duplicate_key",
    "duplicate_tensor",
    "too_many_dims",
    "index_invalid",
    "path_escape",
    "split_mismatch",
    "lfs_pointer",
    "truncated",
}


def make(kind, message):
    """The exception for a kind."""
    found = _CLASSES.get(kind, MalformedError if kind in _MALFORMED else SpocError)
    return found(message, kind)
