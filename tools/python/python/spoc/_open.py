"""``safe_open`` and what it opens."""

import fnmatch
import os
import re

from . import _device, _spoc
from ._errors import BadIndexError, NotFoundError, NoTensorError, SpocError, UnsupportedError
from ._frameworks import framework as find_framework

#: Bytes of the groups in which ``tensors()`` hands out a model.
GROUP_BYTES = 256 << 20

_GGML_PLAIN = {"F16", "BF16", "F32", "F64", "I8", "I16", "I32", "I64"}


#: As many tensors of one load are made into arrays group by group.
_MANY = 1000

#: safetensors' own names for ways to read. No file is ever mapped here: they are taken so that its callers need no change.
_BACKENDS = (None, "mmap", "pread")


def _model(path):
    try:
        return _spoc.Model(path)
    except NotFoundError as error:
        if os.path.lexists(path):
            raise
        # What Python and safetensors say.
        raise NotFoundError(f"No such file or directory: {path}", error.kind) from None


class TensorInfo:
    """What a header says about a tensor.

    ``dtype`` is in the format's terms (``BF16``, ``Q4_K``); ``shape`` has the outermost dimension first. ``is_raw`` tensors
    have elements that no framework has: they are handed out as rows of bytes.
    """

    __slots__ = ("index", "name", "dtype", "shape", "nbytes", "file", "offset", "is_raw", "model")

    def __init__(self, model, index, row, is_gguf):
        self.model, self.index = model, index
        self.name, self.dtype, shape, self.nbytes, self.file, self.offset = row
        self.shape = tuple(shape)
        self.is_raw = self.dtype not in _GGML_PLAIN if is_gguf else self.dtype.startswith("F6_")

    def __repr__(self):
        return f"TensorInfo({self.name!r}, {self.dtype}, {list(self.shape)}, {self.nbytes} bytes)"


class Slice:
    """A tensor that is not read yet; indexing reads the part asked for, and nothing else."""

    def __init__(self, opened, info):
        self._opened, self._info = opened, info

    def get_shape(self):
        """The whole tensor's shape."""
        return list(self._info.shape)

    def get_dtype(self):
        """Its element type, in the format's terms."""
        return self._info.dtype

    def __getitem__(self, index):
        return self._opened._slice(self._info, index)


def _ranges(info, index):
    """A range for each dimension, and the shape of the result."""
    index = list(index) if isinstance(index, tuple) else [index]
    index = [slice(0, 0) if isinstance(part, list) and not part else part for part in index]
    if any(part is None or isinstance(part, (list, bytes, str)) for part in index):
        raise UnsupportedError(f"{info.name}: slices take integers, ranges and one ellipsis", "unsupported")
    if index.count(Ellipsis) > 1:
        raise BadIndexError(f"{info.name}: more than one ellipsis", "bad_index")
    if Ellipsis in index:
        at = index.index(Ellipsis)
        index[at : at + 1] = [slice(None)] * (len(info.shape) - len(index) + 1)
    if len(index) > len(info.shape):
        count = len(index)
        raise BadIndexError(f"{info.name}: {count} indices for {len(info.shape)} dimensions", "bad_index")
    index += [slice(None)] * (len(info.shape) - len(index))
    ranges, shape = [], []
    for axis, (part, length) in enumerate(zip(index, info.shape)):
        if isinstance(part, slice):
            start, stop, step = part.indices(length)
            if step != 1:
                raise UnsupportedError(f"{info.name}: dimension {axis} by steps of {step}, expected 1", "unsupported")
            stop = max(start, stop)
            shape.append(stop - start)
        else:
            start = part.__index__()
            if not -length <= start < length:
                message = f"{info.name}: index {start} of dimension {axis}, which has {length}"
                raise BadIndexError(message, "bad_index")
            start += length if start < 0 else 0
            stop = start + 1
        ranges.append((start, stop))
    return ranges, shape


class SafeOpen:
    """Opened weights: one file, a model's shards, or several files together.

    Headers are read and checked at once, contents when they are asked for. Every tensor owns its memory: it stays as it is
    whatever is loaded later, also when this object is closed.
    """

    def __init__(self, filename, framework="pt", device="cpu", *, io="auto", staging_bytes=None, backend=None):
        if backend not in _BACKENDS:
            raise SpocError(f"backend={backend!r}, expected None, 'mmap' or 'pread'; io= says more", "usage")
        if backend == "pread" and io == "auto":
            io = "pread"
        self._framework = find_framework(framework)
        self._device, self._io, self._staging = device, io, staging_bytes
        _device.parse(device)
        paths = [filename] if isinstance(filename, (str, bytes, os.PathLike)) else list(filename)
        if not paths:
            raise SpocError("no file to open", "usage")
        self._models = [_model(os.fsdecode(path)) for path in paths]
        self._infos = {}
        for model in self._models:
            is_gguf = model.format == "gguf"
            for index, row in enumerate(model.tensors()):
                info = TensorInfo(model, index, row, is_gguf)
                if self._infos.setdefault(info.name, info) is not info:
                    raise SpocError(f"{info.name} is in two of the files", "duplicate_tensor")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Closes the files. Tensors stay."""
        self._models, self._infos = [], None

    def _all(self):
        if self._infos is None:
            raise SpocError("the file is closed", "closed")
        return self._infos

    def _info(self, name):
        info = self._all().get(name)
        if info is None:
            raise NoTensorError(f"File does not contain tensor {name}", "no_tensor")
        return info

    def _loader(self):
        return _device.loader(self._device, self._io, self._staging)

    def keys(self):
        """Names of all tensors, sorted."""
        return sorted(self._all())

    def offset_keys(self):
        """Names of all tensors, in the order in which they lie in the files."""
        return list(self._all())

    def __contains__(self, name):
        return name in self._all()

    def __len__(self):
        return len(self._all())

    def metadata(self):
        """The header's metadata as a dict of strings; ``None`` if it has none."""
        self._all()
        found = {}
        for model in self._models:
            found.update(model.metadata())
        return found or None

    def info(self, name):
        """What the header says about a tensor: :class:`TensorInfo`."""
        return self._info(name)

    def get_tensor(self, name):
        """One tensor, in memory of its own."""
        info = self._info(name)
        (tensor,) = self._load([info]).values()
        return tensor

    def get_slice(self, name):
        """A tensor to index before anything of it is read: :class:`Slice`."""
        return Slice(self, self._info(name))

    def get_tensors(self, names=None, *, pattern=None, verify=False, progress=None, cancel=None):
        """Many tensors at once, each byte of the files read once: a dict by name.

        ``names`` or a ``pattern`` (``*`` matches dots too, a compiled expression is searched for) select before anything is
        read. ``verify`` compares with the manifest beside the model while it streams. ``progress(done, total)`` is called
        in this thread, in bytes. ``cancel`` is a :class:`Cancel`.
        """
        return self._load(self._select(names, pattern), verify=verify, progress=progress, cancel=cancel)

    def tensors(self, names=None, *, pattern=None, verify=False, cancel=None, group_bytes=GROUP_BYTES):
        """Name and tensor, as they become ready: the first ones while the others are being read."""
        infos = self._select(names, pattern)
        loader = self._loader()
        for model in self._models:
            mine = [info for info in infos if info.model is model]
            yield from self._stream(loader, model, mine, group_bytes, verify, cancel)

    def _stream(self, loader, model, infos, group_bytes, verify, cancel):
        groups = _groups(infos, group_bytes)
        stream = loader.stream(model, [[info.index for info in group] for group in groups], verify=verify, cancel=cancel)
        for group in groups:
            parts = stream.next()
            if parts is None:
                return
            yield from self._arrays(group, parts)

    def _select(self, names, pattern):
        infos = list(self._all().values()) if names is None else [self._info(name) for name in names]
        if pattern is not None:
            search = pattern.search if hasattr(pattern, "search") else re.compile(fnmatch.translate(pattern)).match
            infos = [info for info in infos if search(info.name)]
            if not infos:
                raise NoTensorError(f"no tensor matches {pattern}", "no_tensor")
        return infos

    def _load(self, infos, *, verify=False, progress=None, cancel=None):
        loader = self._loader()
        found = {}
        for model in self._models:
            mine = [info for info in infos if info.model is model]
            mine.sort(key=_index)
            if not mine:
                continue
            if len(mine) >= _MANY and progress is None:
                # Arrays are made of one group while the next is read: so many take as long as their bytes do.
                found.update(self._stream(loader, model, mine, GROUP_BYTES, verify, cancel))
                continue
            indices = [info.index for info in mine]
            parts = loader.load(model, indices, verify=verify, progress=progress, cancel=cancel)
            found.update(self._arrays(mine, parts))
        return {info.name: found[info.name] for info in infos}

    def _arrays(self, infos, parts):
        memories, places = parts
        bases = [self._framework.base(memory) for memory in memories]
        placed = [(info, segment, offset) for info, (segment, offset, _) in zip(infos, places)]
        return zip([info.name for info in infos], self._framework.views(bases, placed))

    def _slice(self, info, index):
        ranges, shape = _ranges(info, index)
        if info.is_raw or info.dtype == "F4":
            raise UnsupportedError(f"{info.name}: {info.dtype} has no elements that a slice could count", "unsupported")
        part = _Part(info, shape)
        if info.model.format == "gguf":
            ranges = ranges[::-1]
        parts = self._loader().load_slices(info.model, [(info.index, ranges)])
        ((_, tensor),) = self._arrays([part], parts)
        return tensor


def _index(info):
    return info.index


class _Part:
    """A slice in the place of a tensor's header."""

    is_raw = False

    def __init__(self, info, shape):
        self.name, self.dtype, self.shape = info.name, info.dtype, tuple(shape)
        count = 1
        for length in info.shape:
            count *= length
        size = info.nbytes // count if count else 0
        self.nbytes = size
        for length in shape:
            self.nbytes *= length


def _groups(infos, group_bytes):
    """Neighbours in the files, in groups of about so many bytes; the first is small, so that something is there soon."""
    groups, room = [], 0
    for info in sorted(infos, key=lambda info: info.index):
        if not groups or info.nbytes > room:
            groups.append([])
            room = group_bytes // 8 if len(groups) == 1 else group_bytes
        groups[-1].append(info)
        room -= info.nbytes
    return groups
