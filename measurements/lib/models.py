"""Model files of random bytes for measurements: safetensors (whole or sharded) and GGUF, written once and kept."""

import json
import os
import struct

BLOCK = 64 << 20


def _pour(file, length):
    """`length` random bytes, the same block again and again: no reader here compresses."""
    block = os.urandom(min(BLOCK, max(length, 1)))
    while length > 0:
        length -= file.write(block[: min(length, len(block))])


def _finished(path, write):
    """Writes to a name of its own first: a file that is there is whole."""
    if os.path.exists(path):
        return path
    with open(path + ".part", "wb", buffering=0) as file:
        write(file)
        os.fsync(file.fileno())
    os.rename(path + ".part", path)
    return path


def safetensors(path, count, each_bytes, first=0):
    """`count` U8 tensors of `each_bytes`; their data begins wherever the header ends, as writers leave it."""

    def write(file):
        entries = {
            f"model.layers.{first + number}.weight": {
                "dtype": "U8",
                "shape": [each_bytes],
                "data_offsets": [number * each_bytes, (number + 1) * each_bytes],
            }
            for number in range(count)
        }
        header = json.dumps(entries, separators=(",", ":")).encode()
        header += b" " * (-len(header) % 8)
        file.write(struct.pack("<Q", len(header)) + header)
        _pour(file, count * each_bytes)

    return _finished(path, write)


def sharded(folder, shards, count, each_bytes):
    """The same tensors in `shards` files beside an index. Gives the files."""
    os.makedirs(folder, exist_ok=True)
    per, paths, weights = count // shards, [], {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        paths.append(safetensors(os.path.join(folder, name), per, each_bytes, first=shard * per))
        weights.update({f"model.layers.{shard * per + number}.weight": name for number in range(per)})
    index = {"metadata": {"total_size": per * shards * each_bytes}, "weight_map": weights}
    with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
        json.dump(index, file)
    return paths


def gguf(path, count, each_bytes):
    """GGUF v3 with `count` F16 tensors of `each_bytes`, aligned to 32."""

    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    def write(file):
        head = b"GGUF" + struct.pack("<IQQ", 3, count, 1)
        head += text("general.architecture") + struct.pack("<I", 8) + text("llama")
        step = (each_bytes + 31) // 32 * 32
        for number in range(count):
            name = text(f"blk.{number}.ffn_up.weight")
            head += name + struct.pack("<IQIQ", 1, each_bytes // 2, 1, number * step)
        head += b"\0" * (-len(head) % 32)
        file.write(head)
        _pour(file, count * step)

    return _finished(path, write)
