"""Every byte, shape and dtype, against the packages that define the formats."""

import json
import os
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest
import spoc


def safetensors(path, tensors, metadata=None):
    """Writes a file by the format's own words, so that dtypes NumPy lacks are in it too."""
    header, data = ({"__metadata__": metadata} if metadata else {}), b""
    for name, (dtype, shape, payload) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(payload)]}
        data += payload
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def noise(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, count, dtype="uint8").tobytes()


@pytest.fixture
def model(tmp_path):
    tensors = {f"layers.{n}.w": ("F32", [64, 33], noise(64 * 33 * 4, n)) for n in range(10)}
    tensors["ids"] = ("I64", [7], noise(56, 20))
    tensors["half"] = ("F16", [3, 5], noise(30, 21))
    tensors["empty"] = ("F32", [0, 3], b"")
    tensors["scalar"] = ("F64", [], noise(8, 22))
    tensors["flags"] = ("BOOL", [3], b"\1\0\1")
    return safetensors(tmp_path / "model.safetensors", tensors, {"format": "pt"}), tensors


def same(array, entry):
    dtype, shape, payload = entry
    return list(array.shape) == shape and array.tobytes() == payload


def test_every_tensor_is_what_the_file_says(model):
    path, tensors = model
    with spoc.safe_open(path, framework="np") as opened:
        assert opened.keys() == sorted(tensors) and opened.offset_keys() == list(tensors)
        assert opened.metadata() == {"format": "pt"}
        assert len(opened) == len(tensors) and "ids" in opened and "nothing" not in opened
        for name in opened.keys():
            assert same(opened.get_tensor(name), tensors[name]), name
    loaded = spoc.load_file(path, "np")
    assert list(loaded) == list(tensors)
    assert all(same(loaded[name], tensors[name]) for name in tensors)


def test_numpy_reads_what_safetensors_wrote(tmp_path):
    numpy_of = pytest.importorskip("safetensors.numpy")
    kinds = ["bool", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8"]
    arrays = {kind: np.arange(24).reshape(2, 3, 4).astype(kind) for kind in kinds}
    path = tmp_path / "kinds.safetensors"
    numpy_of.save_file(arrays, path)
    loaded = spoc.load_file(path, "np")
    for kind, array in arrays.items():
        assert loaded[kind].dtype == array.dtype and np.array_equal(loaded[kind], array), kind


def test_types_numpy_lacks_come_from_ml_dtypes_or_are_refused_by_name(tmp_path):
    path = safetensors(tmp_path / "m.safetensors", {"w": ("BF16", [2], noise(4)), "q": ("F8_E4M3", [4], noise(4))})
    with spoc.safe_open(path, "np") as opened:
        try:
            import ml_dtypes
        except ImportError:
            with pytest.raises(spoc.UnsupportedError, match="w: NumPy has no BF16"):
                opened.get_tensor("w")
        else:
            assert opened.get_tensor("w").dtype == ml_dtypes.bfloat16
            assert opened.get_tensor("q").dtype == ml_dtypes.float8_e4m3fn


def test_slices_read_only_their_part(model):
    path, tensors = model
    whole = np.frombuffer(tensors["layers.3.w"][2], "f4").reshape(64, 33)
    with spoc.safe_open(path, "np") as opened:
        part = opened.get_slice("layers.3.w")
        assert part.get_shape() == [64, 33] and part.get_dtype() == "F32"
        for index in [
            np.s_[:],
            (),
            np.s_[2:5, 1:],
            np.s_[-1],
            np.s_[..., 3],
            np.s_[3:3],
            np.s_[0, :2],
            np.s_[10:, -5:-2],
            np.s_[0, 0],
            np.s_[100:200],
        ]:
            assert part[index].tobytes() == whole[index].tobytes() and part[index].shape == whole[index].shape, index
        for index in [np.s_[64], np.s_[:, -34], np.s_[0, 0, 0], (Ellipsis, Ellipsis)]:
            with pytest.raises(IndexError, match="layers.3.w"):
                part[index]
        for index in [np.s_[::2], [0, 1], None]:
            with pytest.raises(spoc.UnsupportedError, match="layers.3.w"):
                part[index]


def test_tensors_come_in_groups_as_they_are_ready(model):
    path, tensors = model
    with spoc.safe_open(path, "np") as opened:
        seen = []
        for name, array in opened.tensors(group_bytes=20_000):
            assert same(array, tensors[name]), name
            seen.append(name)
        assert seen == list(tensors)
        # One that is left early ends its reads, and the next one is none the worse.
        next(opened.tensors(group_bytes=9000))
        assert len(list(opened.tensors(pattern="layers.*"))) == 10


def test_very_many_tensors_are_what_the_file_says(tmp_path):
    tensors = {f"t{n}": ("F16", [n % 5, 3], noise(n % 5 * 6, n)) for n in range(1500)}
    path = safetensors(tmp_path / "many.safetensors", tensors)
    loaded = spoc.load_file(path, "np")
    assert list(loaded) == list(tensors)
    assert all(same(loaded[name], tensors[name]) for name in tensors)


def test_selection_is_made_before_anything_is_read(model):
    path, tensors = model
    with spoc.safe_open(path, "np") as opened:
        assert list(opened.get_tensors(["half", "ids"])) == ["half", "ids"]
        assert list(opened.get_tensors(pattern="layers.[01].w")) == ["layers.0.w", "layers.1.w"]
        told = []
        opened.get_tensors(pattern="layers.*", progress=lambda done, total: told.append((done, total)))
        assert told[-1] == (10 * 64 * 33 * 4,) * 2
        with pytest.raises(spoc.NoTensorError) as error:
            opened.get_tensors(pattern="nothing.*")
        assert error.value.kind == "no_tensor"
        with pytest.raises(KeyError):
            opened.get_tensor("nothing")


def test_tensors_own_their_memory(model):
    path, tensors = model
    opened = spoc.safe_open(path, "np")
    kept = opened.get_tensor("layers.7.w")
    others = [opened.get_tensor("layers.7.w") for _ in range(50)]
    opened.close()
    kept[:] = 1.5
    assert all(same(other, tensors["layers.7.w"]) for other in others)
    del others, opened
    assert (kept == 1.5).all()


def test_a_closed_file_says_so(model):
    with spoc.safe_open(model[0], "np") as opened:
        pass
    for call in [opened.keys, opened.metadata, lambda: opened.get_tensor("ids")]:
        with pytest.raises(spoc.SpocError) as error:
            call()
        assert error.value.kind == "closed"


def test_errors_name_the_thing_and_have_a_kind(tmp_path, model):
    with pytest.raises(FileNotFoundError, match="nothing.safetensors"):
        spoc.safe_open(tmp_path / "nothing.safetensors", "np")
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(struct.pack("<Q", 2) + b"[]")
    with pytest.raises(spoc.MalformedError, match="bad.safetensors") as error:
        spoc.safe_open(bad, "np")
    assert isinstance(error.value, ValueError) and error.value.kind == "invalid_header"
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(model[0].read_bytes()[:-4])
    with pytest.raises(spoc.MalformedError) as error:
        spoc.safe_open(cut, "np")
    assert error.value.kind == "truncated"
    for options, kind in [
        ({"framework": "tensorgarden"}, "unsupported"),
        ({"framework": "np", "device": "cpu:x"}, "usage"),
        ({"framework": "np", "device": "abacus"}, "no_device"),
        ({"framework": "np", "backend": "magic"}, "usage"),
    ]:
        with pytest.raises(spoc.SpocError) as error:
            spoc.safe_open(model[0], **options)
        assert error.value.kind == kind, options
    with pytest.raises(spoc.SpocError) as error:
        spoc.load_file(model[0], "np", io="carrier pigeon")
    assert error.value.kind == "usage"
    with pytest.raises(spoc.SpocError) as error:
        spoc.safe_open([model[0], model[0]], "np")
    assert error.value.kind == "duplicate_tensor"


def test_verify_finds_a_byte_that_is_not_what_the_manifest_says(model):
    path, _ = model
    program = os.environ.get("SPOC_LOADER", "spoc-loader")
    subprocess.run([program, "manifest", path], check=True, capture_output=True)
    assert spoc.load_file(path, "np", verify=True)
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    with pytest.raises(spoc.DigestError, match="model.safetensors"):
        spoc.load_file(path, "np", verify=True)


def test_several_files_and_a_folder(tmp_path):
    parts = {}
    for part in range(3):
        parts[f"p{part}"] = ("F32", [5], noise(20, part))
        safetensors(tmp_path / f"model-0000{part + 1}-of-00003.safetensors", {f"p{part}": parts[f"p{part}"]})
    weights = {f"p{part}": f"model-0000{part + 1}-of-00003.safetensors" for part in range(3)}
    index = {"metadata": {"total_size": 60}, "weight_map": weights}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    for source in [tmp_path, sorted(tmp_path.glob("*.safetensors"))]:
        loaded = spoc.load_file(source, "np")
        assert sorted(loaded) == sorted(parts) and all(same(loaded[name], parts[name]) for name in parts)


def test_gguf_shapes_have_the_outermost_dimension_first(tmp_path):
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    plain = np.arange(12, dtype="float32").reshape(3, 4)
    quantised = gguf.quants.quantize(np.linspace(-1, 1, 128, dtype="float32").reshape(2, 64), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("plain", plain)
    writer.add_tensor("quantised", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with spoc.safe_open(path, "np") as opened:
        assert np.array_equal(opened.get_tensor("plain"), plain)
        assert np.array_equal(opened.get_slice("plain")[1:, 2], plain[1:, 2])
        assert opened.info("quantised").shape == (2, 64) and opened.info("quantised").dtype == "Q8_0"
        assert np.array_equal(opened.get_tensor("quantised"), quantised)
        with pytest.raises(spoc.UnsupportedError, match="quantised: Q8_0"):
            opened.get_slice("quantised")[0]


def test_threads_load_side_by_side(model):
    path, tensors = model
    wrong = []

    def load():
        for _ in range(10):
            loaded = spoc.load_file(path, "np")
            wrong.extend(name for name in tensors if not same(loaded[name], tensors[name]))

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_forked_child_opens_its_own_loader_and_leaves_the_parents_alone(model):
    path, tensors = model
    opened = spoc.safe_open(path, "np")
    kept = opened.get_tensor("ids")
    child = os.fork()
    if child == 0:
        # Whatever goes wrong here must not run the parent's tests again.
        code = 1
        try:
            code = 0 if same(spoc.load_file(path, "np")["half"], tensors["half"]) else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert same(kept, tensors["ids"]) and same(opened.get_tensor("half"), tensors["half"])


def test_a_cancelled_load_says_so(model):
    cancel = spoc.Cancel()
    cancel.cancel()
    with pytest.raises(spoc.CancelledError):
        spoc.load_file(model[0], "np", cancel=cancel)
    assert cancel.cancelled

    class Stop(Exception):
        pass

    def progress(done, total):
        raise Stop

    # An exception of the progress function is the caller's.
    with pytest.raises(Stop):
        spoc.load_file(model[0], "np", progress=progress)


def test_importing_takes_no_framework():
    code = "import sys, spoc; assert not {'numpy', 'torch', 'jax'} & set(sys.modules), sorted(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_torch_tensors_share_no_memory_with_what_comes_later(model):
    torch = pytest.importorskip("torch")
    path, tensors = model
    with spoc.safe_open(path, "pt") as opened:
        for name, (dtype, shape, payload) in tensors.items():
            tensor = opened.get_tensor(name)
            assert list(tensor.shape) == shape
            assert tensor.reshape(-1).view(torch.uint8).numpy().tobytes() == payload, name
        first, second = opened.get_tensor("half"), opened.get_tensor("half")
        first.zero_()
        assert second.numpy().tobytes() == tensors["half"][2]
    # Many at once are cut out of one view; what lies between two of them, or is of another type, is not in the way.
    mixed = {}
    for number in range(200):
        kind, size = [("F32", 4), ("F32", 4), ("BF16", 2), ("U8", 1), ("I64", 8)][number % 5]
        shape = [[3, number % 7], [5], [], [0, 2], [number % 11, 1, 2]][number // 5 % 5]
        count = int(np.prod(shape, dtype="int64"))
        mixed[f"t{number}"] = (kind, shape, noise(count * size, number))
    safetensors(path, mixed)
    loaded = spoc.load_file(path, "pt")
    for name, (dtype, shape, payload) in mixed.items():
        tensor = loaded[name]
        assert list(tensor.shape) == shape and str(tensor.dtype).endswith(
            {"F32": "float32", "BF16": "bfloat16", "U8": "uint8", "I64": "int64"}[dtype]
        )
        assert tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() == payload, name
    module = torch.nn.Linear(33, 64, bias=False, device="meta")
    safetensors(path, {"weight": tensors["layers.0.w"]})
    spoc.load_into(module, path)
    assert module.weight.detach().numpy().tobytes() == tensors["layers.0.w"][2]
