"""Everything at once."""

from ._open import SafeOpen


def load_file(filename, framework="pt", device="cpu", **options):
    """All tensors of a file, a folder, a Hugging Face name, or several files, as a dict by name.

    ``names``, ``pattern``, ``verify``, ``progress`` and ``cancel`` are those of :meth:`SafeOpen.get_tensors`; ``io``,
    ``staging_bytes`` and ``backend`` those of :class:`SafeOpen`.
    """
    opening = {name: options.pop(name) for name in ("io", "staging_bytes", "backend") if name in options}
    with SafeOpen(filename, framework, device, **opening) as opened:
        return opened.get_tensors(**options)


def load_into(module, filename, device=None, strict=True, **options):
    """Gives a PyTorch module the tensors of a model as its parameters and buffers, without a copy.

    Parameters on the meta device are replaced; so are others. Returns what ``load_state_dict`` returns.
    """
    if device is None:
        device = "cpu"
        for parameter in module.parameters():
            if parameter.device.type != "meta":
                device = parameter.device
            break
    return module.load_state_dict(load_file(filename, "pt", device, **options), strict=strict, assign=True)
