"""Devices by the names that frameworks have for them, and the loader of each."""

import os
import threading

from . import _spoc
from ._errors import DeviceError, SpocError

_lock = threading.Lock()
_loaders = {}
#: Bytes of the staging ring of each device.
STAGING_BYTES = 64 << 20


def parse(device):
    """Backend and index for ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``0``, a ``torch.device`` …"""
    if device is None:
        return "native", 0
    if isinstance(device, bool):
        raise SpocError(f"device={device!r}, expected a name or a number", "usage")
    if isinstance(device, int):
        return _gpu(), device
    text = str(device)
    name, colon, number = text.partition(":")
    if colon and not number.isdecimal():
        raise SpocError(f"device={text!r}, expected a number behind the colon", "usage")
    index = int(number) if colon else 0
    if name in ("cpu", "native"):
        return "native", index
    if name in ("cuda", "gpu"):
        return _gpu(), index
    if name in ("hip", "rocm"):
        return "hip", index
    raise DeviceError(f"device={text!r}: no backend of that name serves Python; expected cpu or cuda:N", "no_device")


def _gpu():
    """``cuda``, which is also the name that PyTorch's ROCm builds have for AMD's devices."""
    import sys

    torch = sys.modules.get("torch")
    is_rocm = torch is not None and getattr(torch.version, "hip", None)
    return "hip" if is_rocm else "cuda"


def loader(device, io="auto", staging_bytes=None):
    """The process's loader of a device. One each: a reader, its threads and a staging ring."""
    backend, index = parse(device)
    staging = STAGING_BYTES if staging_bytes is None else int(staging_bytes)
    # A forked child has none of its parent's threads: it gets a loader of its own.
    key = (os.getpid(), backend, index, io, staging)
    with _lock:
        if key not in _loaders:
            _loaders[key] = _spoc.Loader(backend, index, staging, io)
        return _loaders[key]


def _after_fork():
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
