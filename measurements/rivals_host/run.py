#!/usr/bin/env python3
"""How fast do weights come from a file into host memory, beside other loaders? See README.md."""

import argparse
import os
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import models
import rounds

#: What brings bytes into memory of its own on a CPU. Those that only map the file, or ask for a GPU, are in REFUSE.
RIVALS = ["runai", "fastsafetensors", "safe_open_pread", "llamacpp_like"]
REFUSE = ["instanttensor", "st_prefetch"]
#: Without these two read past the page cache, where the others are given theirs.
BUFFERED = {"RUNAI_STREAMER_FS_STRATEGY": "sync_buffered", "FASTSAFETENSORS_ODIRECT": "0"}
#: Never the fastest here, and slow enough to fill the time: five rounds tell that.
SLOW = {"fastsafetensors": 5, "llamacpp_like": 5}
LOAD = ["load", "--backend", "native"]
MEGA = 1_000_000


class Subjects:
    """What is run, on one set of files."""

    def __init__(self, args, paths, model, is_warm, enter=None):
        self.args, self.paths, self.model, self.is_warm, self.enter = args, paths, model, is_warm, enter
        self.bytes = sum(os.path.getsize(path) for path in paths)

    def prepare(self):
        rounds.settle_memory(self.bytes + (256 << 20))
        rounds.warm(self.paths) if self.is_warm else rounds.evict(self.paths)

    def ours(self, words, time_fields, target=None):
        """Seconds as the program has them in `time_fields`; CPU-seconds of the whole process."""

        def once():
            self.prepare()
            found = rounds.run([self.args.loader, *words, "--json", *(target or [self.model])], enter=self.enter)
            if "refused" in found:
                return found
            more = {"path": found.get("io_path"), "streaming_s": found["seconds"], "prepare_s": found["prepare_seconds"]}
            if parts := found.get("cpu_parts"):
                # Without what the kernel does to make memory present, which happens on whatever thread touches it first.
                more["moving_cpu_s_per_gb"] = sum(parts.values()) / (self.bytes / 1e9)
            if "disk_idle_seconds" in found:
                more["queue_busy_share"] = 1 - found["disk_idle_seconds"] / found["seconds"]
            # Rivals' clocks begin when their device's context and their modules are there: so does ours.
            seconds = sum(found[field] for field in time_fields)
            return self.row(seconds, found["process_cpu_s"], total_s=found.get("total_seconds"), **more)

        return once

    def rival(self, name):
        env = {"BENCH_DEV": "cpu", **(BUFFERED if self.is_warm else {})}
        mode = "warm" if self.is_warm else "cold"
        command = [self.args.python, self.args.rivals, name, ",".join(self.paths), mode, "1"]

        def once():
            self.prepare()
            found = rounds.run(command, env=env, enter=self.enter, timeout_s=300)
            if "refused" in found:
                return found
            return self.row(found["s"], found["cpu_s"], resident_before=found["resident_before"])

        return once

    def row(self, seconds, cpu_seconds, **more):
        gigabytes = self.bytes / 1e9
        return {"gb_per_s": gigabytes / seconds, "cpu_s_per_gb": cpu_seconds / gigabytes, **more}

    def all(self, rivals=RIVALS, with_reading=True):
        made = {"load": self.ours(LOAD, ["prepare_seconds", "seconds"])}
        if with_reading:
            made["bench_read"] = self.ours(["bench", "read"], ["seconds"], self.paths)
        return {**made, **{name: self.rival(name) for name in rivals}}


def settings(args):
    """Name, rounds and subjects of each setting; made when it is its turn, because files take room."""
    each = 22 * MEGA + 160
    count = args.bytes // each
    one = lambda: [models.safetensors(os.path.join(args.folder, f"one-{args.bytes}.safetensors"), count, each)]
    small = lambda: [models.safetensors(os.path.join(args.folder, f"small-{args.throttle}.safetensors"), 2 * args.throttle // each, each)]

    def whole(is_warm, paths, **how):
        return Subjects(args, paths, paths[0], is_warm).all(**how)

    def throttled():
        paths = small()
        limit = rounds.Throttle(paths[0], args.throttle)
        return Subjects(args, paths, paths[0], False, limit.enter).all(), limit

    def shards():
        folder = os.path.join(args.folder, f"shards-{args.bytes}")
        paths = models.sharded(folder, 4, count // 4 * 4, each)
        return Subjects(args, paths, folder, False).all(with_reading=False)

    def tiny(is_warm):
        length = args.bytes // 18_000 if not args.full else 340_000
        path = models.safetensors(os.path.join(args.folder, f"tiny-{length}.safetensors"), 18_000, length)
        return whole(is_warm, [path], with_reading=False)

    def gguf(is_warm):
        paths = one()
        other = [models.gguf(os.path.join(args.folder, f"one-{args.bytes}.gguf"), count, each)]
        return {
            "load_safetensors": Subjects(args, paths, paths[0], is_warm).ours(LOAD, ["prepare_seconds", "seconds"]),
            "load_gguf": Subjects(args, other, other[0], is_warm).ours(LOAD, ["prepare_seconds", "seconds"]),
        }

    few = 3 if not args.full else 5
    return [
        ("refused", 1, lambda: {name: Subjects(args, small(), "", True).rival(name) for name in REFUSE}),
        ("cold_throttled", 6, throttled),
        ("cold_raw", 15, lambda: whole(False, one())),
        ("warm", 7, lambda: whole(True, one(), with_reading=False)),
        ("cold_sharded", few, shards),
        ("warm_tiny", few, lambda: tiny(True)),
        ("cold_tiny", few, lambda: tiny(False)),
        ("gguf_cold", 8, lambda: gguf(False)),
        ("gguf_warm", 8, lambda: gguf(True)),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loader", default="target/release/spoc-loader")
    parser.add_argument("--rivals", default=os.environ.get("SPOC_RIVALS"), help="the script that runs rivals")
    parser.add_argument("--python", default=os.environ.get("SPOC_RIVALS_PYTHON", sys.executable))
    parser.add_argument("--folder", required=True, help="on the disk in question; 7 GB of files are left there")
    parser.add_argument("--out", help="a line for each run; runs that it has are not repeated")
    parser.add_argument("--bytes", type=int, default=1500 * MEGA, help="of each model")
    parser.add_argument("--throttle", type=int, default=400 * MEGA, help="bytes a second of the steady disk")
    parser.add_argument("--only", help="settings, by comma")
    parser.add_argument("--minutes", type=float, default=20, help="starts no run after that")
    parser.add_argument("--full", action="store_true", help="18,000 tensors of 340 KB, more rounds")
    args = parser.parse_args()
    if not args.rivals:
        parser.error("--rivals or SPOC_RIVALS names the script that runs rivals")
    os.makedirs(args.folder, exist_ok=True)
    ledger = rounds.Ledger(args.out)
    deadline = time.monotonic() + 60 * args.minutes
    chosen = [entry for entry in settings(args) if not args.only or entry[0] in args.only.split(",")]
    for name, count, make in chosen:
        made = make()
        subjects, limit = made if isinstance(made, tuple) else (made, None)
        try:
            rounds.interleave(ledger, name, subjects, count, deadline, SLOW if count > 7 and not args.full else {})
        finally:
            if limit:
                limit.remove()
    print("\n".join(["", open("/proc/version", encoding="ascii").read().strip()]))
    for name, _, _ in chosen:
        if name.startswith("gguf"):
            rounds.summary(ledger, name, ["load_gguf"], ["load_safetensors"])
        else:
            rounds.summary(ledger, name, ["load", "bench_read"], RIVALS)


main()
