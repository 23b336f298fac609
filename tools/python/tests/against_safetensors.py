"""Runs safetensors' own tests of reading with our `safe_open` and `load_file` in the place of theirs.

    python tests/against_safetensors.py FOLDER      # FOLDER: bindings/python of an unpacked source distribution

Needs pytest, torch, ml_dtypes and fsspec. What is left out tests writing, or what only safetensors has.
"""

import os
import pathlib
import subprocess
import sys

FILES = ["test_simple", "test_pt_comparison", "test_pt_model", "test_multithreaded", "test_pread_backend", "test_handle"]

#: Test, and why it cannot apply.
LEFT_OUT = {
    "test_exception": "of writing; its exception is replaced here by ours",
    "test_numpy_slice": "wants the wording of three messages; what it reads is in our own test_open.py",
    "test_get_tensor_meta_matches_header": "`get_tensor_meta` counts offsets from the end of the header; ours is `info`",
    "test_prefetch": "`prefetch` is their own loader's interface; ours is `tensors`",
}

PLUGIN = """
import safetensors, safetensors.numpy, safetensors.torch, spoc

def load_pt(filename, device="cpu", **options):
    return spoc.load_file(filename, "pt", device, **options)

def load_np(filename, **options):
    return spoc.load_file(filename, "np", **options)

safetensors.SafetensorError = spoc.SpocError
for module in (safetensors, safetensors.numpy, safetensors.torch):
    module.safe_open = spoc.safe_open
safetensors.torch.load_file, safetensors.numpy.load_file = load_pt, load_np
"""


def main():
    folder = pathlib.Path(sys.argv[1])
    plugin = folder / "spoc_in_its_place.py"
    plugin.write_text(PLUGIN)
    chosen = " and ".join(f"not {name}" for name in LEFT_OUT)
    files = [f"tests/{name}.py" for name in FILES]
    command = [sys.executable, "-m", "pytest", "-q", "-p", plugin.stem, "-p", "no:cacheprovider", "-k", chosen, *files]
    try:
        code = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(folder.resolve())}).returncode
    finally:
        plugin.unlink()
    for name, reason in LEFT_OUT.items():
        print(f"left out: {name}: {reason}")
    sys.exit(code)


main()
