#!/usr/bin/env python3
"""How near to a fast disk's own rate does the reader come? See README.md."""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import models
import rounds

MEGA = 1_000_000
FIO = [("128k", 32), ("1M", 4), ("1M", 8), ("1M", 16), ("2M", 8), ("4M", 4), ("4M", 8)]


def call(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@contextlib.contextmanager
def fast_disk(length):
    """A folder on ext4 on a loop device, with direct I/O, over a file in memory. Gone when done."""
    folder = tempfile.mkdtemp(prefix="spoc-fast-", dir="/dev/shm")
    undo = [lambda: os.rmdir(folder)]
    try:
        image = os.path.join(folder, "image")
        with open(image, "wb") as file:
            file.truncate(length)
        undo.append(lambda: os.unlink(image))
        device = call("losetup", "--direct-io=on", "--find", "--show", image)
        undo.append(lambda: call("losetup", "--detach", device))
        call("mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", device)
        mounted = os.path.join(folder, "mounted")
        os.mkdir(mounted)
        undo.append(lambda: os.rmdir(mounted))
        call("mount", device, mounted)
        undo.append(lambda: call("umount", mounted))
        os.chmod(folder, 0o755)
        yield mounted
    finally:
        for step in reversed(undo):
            try:
                step()
            except (OSError, subprocess.CalledProcessError) as error:
                print(f"left behind: {error}", file=sys.stderr)


def subjects(args, path):
    gigabytes = os.path.getsize(path) / 1e9

    def ours(words, field="seconds"):
        def once():
            rounds.settle_memory(os.path.getsize(path) + (128 << 20))
            rounds.evict([path])
            found = rounds.run([args.loader, *words, "--json", path])
            if "refused" in found:
                return found
            cpu = found["cpu_seconds"] / gigabytes
            return {"gb_per_s": gigabytes / found[field], "cpu_s_per_gb": cpu, "path": found["io_path"]}

        return once

    def fio(block, depth):
        command = ["fio", "--name=raw", f"--filename={path}", "--rw=read", "--direct=1", "--ioengine=io_uring"]
        command += ["--readonly", "--output-format=json", f"--bs={block}", f"--iodepth={depth}"]

        def once():
            rounds.evict([path])
            found = rounds.run(command)
            if "refused" in found:
                return found
            job = found["jobs"][0]
            seconds = job["read"]["runtime"] / 1e3
            cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * seconds / gigabytes
            return {"gb_per_s": job["read"]["io_bytes"] / 1e9 / seconds, "cpu_s_per_gb": cpu}

        return once

    made = {"bench_read": ours(["bench", "read", "--io", "direct"])}
    made["bench_read_depth_4"] = ours(["bench", "read", "--io", "direct", "--depth", "4"])
    made["bench_read_pread"] = ours(["bench", "read", "--io", "pread"])
    made["load"] = ours(["load", "--io", "direct"])
    return {**made, **{f"fio_{block}_{depth}": fio(block, depth) for block, depth in FIO}}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loader", default="target/release/spoc-loader")
    parser.add_argument("--bytes", type=int, default=2000 * MEGA)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rungs", action="store_true", help="the rungs of ../rungs on this disk too")
    parser.add_argument("--seccomp", help="as ../rungs has it")
    parser.add_argument("--out", help="a line for each run; runs that it has are not repeated")
    parser.add_argument("--minutes", type=float, default=10)
    args = parser.parse_args()
    # So that a terminated measurement cleans up too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    ledger = rounds.Ledger(args.out)
    with fast_disk(args.bytes + args.bytes // 8) as folder:
        each = 22 * MEGA + 160
        path = models.safetensors(os.path.join(folder, "one.safetensors"), args.bytes // each, each)
        made = subjects(args, path)
        rounds.interleave(ledger, "fast_disk", made, args.rounds, time.monotonic() + 60 * args.minutes)
        rounds.summary(ledger, "fast_disk", list(made)[:4], list(made)[4:])
        if args.rungs:
            here = os.path.dirname(os.path.abspath(__file__))
            command = [sys.executable, os.path.join(here, "..", "rungs", "run.py"), path, "--loader", args.loader]
            command += ["--rounds", str(args.rounds)] + (["--seccomp", args.seccomp] if args.seccomp else [])
            command += ["--out", args.out + ".rungs"] if args.out else []
            subprocess.run(command, check=False)


main()
