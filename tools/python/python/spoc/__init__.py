"""Weights from file to device memory at the speed of the wire.

``safe_open`` opens safetensors and GGUF files, folders of shards and Hugging Face names, and hands out tensors of PyTorch,
NumPy, JAX or CuPy. ``load_file`` loads everything at once.
"""

from ._errors import (
    BadIndexError,
    CancelledError,
    DeviceError,
    DigestError,
    MalformedError,
    NotFoundError,
    NoTensorError,
    SpocError,
    UnsupportedError,
)
from ._load import load_file, load_into
from ._open import SafeOpen, Slice, TensorInfo
from ._spoc import Cancel, __version__

#: As ``safetensors.safe_open``, for more formats: :class:`SafeOpen`.
safe_open = SafeOpen

__all__ = [
    "BadIndexError",
    "Cancel",
    "CancelledError",
    "DeviceError",
    "DigestError",
    "MalformedError",
    "NoTensorError",
    "NotFoundError",
    "SafeOpen",
    "Slice",
    "SpocError",
    "TensorInfo",
    "UnsupportedError",
    "__version__",
    "load_file",
    "load_into",
    "safe_open",
]
