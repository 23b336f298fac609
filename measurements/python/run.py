#!/usr/bin/env python3
"""How fast do weights come from a warm file to a GPU through Python, beside our program and other loaders? See README.md."""

import argparse
import json
import os
import random
import resource
import struct
import subprocess
import sys
import time

import spoc
import torch

RIVALS = {"instanttensor": {}, "st_prefetch": {}, "fastsafetensors": {"FASTSAFETENSORS_ODIRECT": "0"}}


def make(path, count, each):
    """A file of `count` tensors of `each` random bytes."""
    header, end = {}, 0
    for number in range(count):
        entry = {"dtype": "BF16", "shape": [each // 2], "data_offsets": [end, end + each]}
        header[f"model.layers.{number}.weight"] = entry
        end += each
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % 64)
    block = os.urandom(1 << 24) * 4
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        left = end
        while left > 0:
            file.write(block[:left])
            left -= min(left, len(block))
    return end


def warm(path):
    with open(path, "rb") as file:
        while file.read(1 << 26):
            pass


def check(path):
    """Some tensors and slices are what the file says, byte by byte."""
    with spoc.safe_open(path, device="cuda") as opened, open(path, "rb") as file:
        for name in random.sample(opened.keys(), 5):
            tensor, info = opened.get_tensor(name), opened.info(name)
            file.seek(info.offset)
            assert tensor.cpu().view(torch.uint8).numpy().tobytes() == file.read(info.nbytes), name
            part = opened.get_slice(name)[1000:2000].cpu().view(torch.uint8)
            assert torch.equal(part, tensor.cpu()[1000:2000].view(torch.uint8)), name


def timed(load):
    began = time.perf_counter()
    tensors = load()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    assert len(tensors) > 0
    return seconds


def load_file(path):
    return timed(lambda: spoc.load_file(path, "pt", "cuda"))


def tensors(path):
    def load():
        with spoc.safe_open(path, "pt", "cuda") as opened:
            return dict(opened.tensors())

    return timed(load)


def program(path):
    command = ["spoc-loader", "load", "--backend", "cuda", "--json", path]
    told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    return told["prepare_seconds"] + told["seconds"]


def rival(script, name):
    def load(path):
        command = [sys.executable, script, name, path, "warm", "1"]
        run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **RIVALS[name]})
        lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
        return json.loads(lines[-1])["s"] if lines else None

    return load


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True, help="on the disk; 17 GB of files are left there")
    parser.add_argument("--rivals", help="the script that runs other loaders")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    files = {}
    for name, count, each in (("192 tensors", 192, 54_525_952), ("18,000 tensors", 18_000, 340_000)):
        path = os.path.join(args.folder, f"{count}.safetensors")
        files[path] = (name, make(path, count, each))
    # The context is there before any clock runs, as for the others.
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    check(next(iter(files)))
    subjects = {"load_file": load_file, "tensors": tensors, "spoc-loader load": program}
    if args.rivals:
        subjects.update({name: rival(args.rivals, name) for name in RIVALS})
    for path, (name, length) in files.items():
        warm(path)
        for round_ in range(args.rounds):
            for subject, load in subjects.items():
                if subject in RIVALS and round_ >= 2:
                    continue
                seconds = load(path)
                rate = round(length / 1e9 / seconds, 2) if seconds else None
                print(json.dumps({"file": name, "subject": subject, "round": round_, "gb_per_s": rate}), flush=True)
    print(json.dumps({"peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}))


main()
