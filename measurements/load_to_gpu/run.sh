#!/usr/bin/env bash
# Loads one 10.5 GB safetensors file to every device, cold and warm, three rounds interleaved, then with --check.
# Usage: run.sh SPOC_LOADER FOLDER   (root, 30 GB of memory, 12 GB of disk in FOLDER)
set -u
loader=$1 folder=$2
mkdir -p "$folder"
nproc && uname -r && nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
"$loader" doctor "$folder"
"$loader" devices
python3 - "$folder/model.safetensors" <<'PY'
import json, os, struct, sys
count, size = 200, 52428800
header, offset = {}, 0
for i in range(count):
    header[f"model.layers.{i // 7}.w{i % 7}.weight"] = {"dtype": "BF16", "shape": [size // 2], "data_offsets": [offset, offset + size]}
    offset += size
text = json.dumps(header).encode()
text += b" " * (1 + (-len(text)) % 8)
block = os.urandom(64 << 20)
with open(sys.argv[1], "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    left, turn = offset, 0
    while left:
        start = (turn * 7919) % len(block)
        part = (block[start:] + block[:start])[:left]
        file.write(part)
        left -= len(part)
        turn += 1
os.sync()
PY
file=$folder/model.safetensors
cold() { sync; echo 1 >/proc/sys/vm/drop_caches; }
for _ in 1 2 3; do
    cold; echo "cold bench_read $("$loader" bench read "$file" --io direct --json)"
    for backend in native opencl vulkan; do cold; echo "cold $backend $("$loader" load "$folder" --backend $backend --io direct --json)"; done
done
cat "$file" >/dev/null
for _ in 1 2 3; do
    echo "warm bench_read $("$loader" bench read "$file" --json)"
    for backend in native opencl vulkan; do echo "warm $backend $("$loader" load "$folder" --backend $backend --json)"; done
done
for backend in native opencl vulkan; do echo "check $backend $("$loader" load "$folder" --backend $backend --check --json)"; done
