"""Untyped memory becomes the arrays of a framework. Nothing is imported before it is asked for."""

from ._errors import UnsupportedError

_NUMPY = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
}

#: NumPy has no such type; the package ml_dtypes adds it.
_ML_DTYPES = {
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}

_TORCH = {**_NUMPY, **_ML_DTYPES, "F4": "float4_e2m1fn_x2"}


def _shape(info):
    """Shape in whole elements of the array: bytes of the last dimension where elements are packed."""
    shape = list(info.shape)
    if info.is_raw:
        # Quantised blocks, and elements of six bits: rows of bytes.
        rows = 1
        for length in shape[:-1]:
            rows *= length
        width = info.nbytes // rows if rows else 0
        return [*shape[:-1], width] if shape else [info.nbytes]
    if info.dtype == "F4":
        shape[-1] //= 2
    return shape


def _strides(shape):
    """Of an array whose last dimension is the innermost, in elements."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return strides[::-1]


class Framework:
    """How one framework makes arrays of memory."""

    name = ""

    def base(self, memory):
        """One array of bytes over the memory, which it keeps."""
        raise NotImplementedError

    def view(self, base, offset, info):
        """The tensor that begins at this byte of the base."""
        raise NotImplementedError

    def views(self, bases, placed):
        """The tensors of ``(info, base's number, offset)``, in that order."""
        return [self.view(bases[number], offset, info) for info, number, offset in placed]


class Torch(Framework):
    name = "pt"

    def __init__(self):
        import torch

        self.torch = torch
        self.dtypes = {name: getattr(torch, known) for name, known in _TORCH.items() if hasattr(torch, known)}

    def base(self, memory):
        return self.torch.from_dlpack(memory)

    def view(self, base, offset, info):
        dtype = self.torch.uint8 if info.is_raw else self.dtypes.get(info.dtype)
        if dtype is None:
            raise UnsupportedError(f"{info.name}: this torch has no dtype for {info.dtype}", "unsupported")
        flat = base.narrow(0, offset, info.nbytes)
        if offset % dtype.itemsize:
            # Only memory that lies as in a file of odd layout begins a number in the middle of one.
            flat = flat.clone()
        return flat.view(dtype).view(_shape(info))

    def views(self, bases, placed):
        # One call a tensor: three of them cost more than reading a small one does.
        typed, strides, made = {}, {}, []
        as_strided = self.torch.as_strided
        for info, number, offset in placed:
            key = (number, info.dtype)
            if key not in typed:
                typed[key] = self._typed(bases[number], info)
            base, size = typed[key]
            if base is None or offset % size:
                made.append(self.view(bases[number], offset, info))
                continue
            shape = info.shape
            if shape not in strides:
                strides[shape] = _strides(shape)
            made.append(as_strided(base, shape, strides[shape], offset // size))
        return made

    def _typed(self, base, info):
        """The base as elements of a tensor's dtype, and their size; ``None`` where that takes more."""
        dtype = None if info.is_raw or info.dtype == "F4" else self.dtypes.get(info.dtype)
        if dtype is None:
            return None, 0
        return base.narrow(0, 0, base.numel() // dtype.itemsize * dtype.itemsize).view(dtype), dtype.itemsize


class Numpy(Framework):
    name = "np"

    def __init__(self):
        import numpy

        self.numpy = numpy

    def base(self, memory):
        if not memory.nbytes:
            return self.numpy.empty(0, dtype="uint8")
        return self.numpy.asarray(memory)

    def dtype(self, info):
        if info.is_raw:
            return self.numpy.dtype("uint8")
        if info.dtype in _NUMPY:
            return self.numpy.dtype(_NUMPY[info.dtype])
        if info.dtype in _ML_DTYPES:
            try:
                import ml_dtypes
            except ImportError:
                reason = f"{info.name}: NumPy has no {info.dtype} without the package ml_dtypes"
                raise UnsupportedError(reason, "unsupported") from None
            return self.numpy.dtype(getattr(ml_dtypes, _ML_DTYPES[info.dtype]))
        raise UnsupportedError(f"{info.name}: NumPy has no {info.dtype}", "unsupported")

    def view(self, base, offset, info):
        dtype = self.dtype(info)
        # An array at an odd address is legal, and NumPy says so in its flags.
        flat = base[offset : offset + info.nbytes]
        return flat.view(dtype).reshape(_shape(info))


class Jax(Numpy):
    name = "jax"

    def __init__(self):
        super().__init__()
        import jax.numpy

        self.jax = jax.numpy

    def view(self, base, offset, info):
        return self.jax.asarray(super().view(base, offset, info))


class Cupy(Framework):
    name = "cupy"

    def __init__(self):
        import cupy

        self.cupy = cupy

    def base(self, memory):
        return self.cupy.asarray(memory)

    def view(self, base, offset, info):
        known = "uint8" if info.is_raw else _NUMPY.get(info.dtype)
        if known is None:
            raise UnsupportedError(f"{info.name}: CuPy has no {info.dtype}", "unsupported")
        return base[offset : offset + info.nbytes].view(known).reshape(_shape(info))


_NAMES = {
    "pt": Torch,
    "torch": Torch,
    "pytorch": Torch,
    "np": Numpy,
    "numpy": Numpy,
    "jax": Jax,
    "flax": Jax,
    "cupy": Cupy,
}

_made = {}


def framework(name):
    """The framework of this name, imported at its first use."""
    kind = _NAMES.get(name)
    if kind is None:
        known = ", ".join(sorted(_NAMES))
        raise UnsupportedError(f"framework={name!r}, expected one of {known}", "unsupported")
    if kind not in _made:
        _made[kind] = kind()
    return _made[kind]
