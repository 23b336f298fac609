#!/usr/bin/env python3
"""What do a refused io_uring, a small memlock limit and an ordinary user cost? See README.md."""

import argparse
import os
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import rounds

SYSCTL = "/proc/sys/kernel/io_uring_disabled"
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


class RefusedRing:
    """io_uring switched off by sysctl, and put back."""

    def __enter__(self):
        with open(SYSCTL, "r+", encoding="ascii") as file:
            self.before = file.read().strip()
            file.seek(0)
            file.write("2")

    def __exit__(self, *_):
        with open(SYSCTL, "w", encoding="ascii") as file:
            file.write(self.before)


def subjects(loader, path, enter, seccomp):
    gigabytes = os.path.getsize(path) / 1e9
    read = [loader, "bench", "read", "--io", "direct", "--json", path]

    def measured(command, refuse=False):
        def once():
            rounds.evict([path])
            if refuse:
                with RefusedRing():
                    found = rounds.run(command, enter=enter)
            else:
                found = rounds.run(command, enter=enter)
            if "refused" in found:
                return found
            row = {"gb_per_s": gigabytes / found["seconds"], "cpu_s_per_gb": found["cpu_seconds"] / gigabytes}
            return {**row, "path": found["io_path"], "why": found["io_path_reason"]}

        return once

    limited = ["prlimit", "--memlock=8388608:8388608", *NOBODY]
    made = {
        "uring": measured(read),
        "refused_by_sysctl": measured(read, refuse=True),
        "memlock_8_mib": measured([*limited, *read]),
        "ordinary_user": measured([*NOBODY, *read]),
        "ordinary_user_refused": measured([*NOBODY, *read], refuse=True),
    }
    if seccomp:
        made["refused_by_seccomp"] = measured([sys.executable, seccomp, *read])
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--loader", default="target/release/spoc-loader")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--throttle", type=int, help="bytes a second that the disk is held to")
    parser.add_argument("--seccomp", help="a program that runs its arguments with io_uring refused")
    parser.add_argument("--out", help="a line for each run; runs that it has are not repeated")
    parser.add_argument("--minutes", type=float, default=10)
    args = parser.parse_args()
    setting = f"rungs_{args.throttle or 'raw'}"
    ledger = rounds.Ledger(args.out)
    limit = rounds.Throttle(args.file, args.throttle) if args.throttle else None
    try:
        made = subjects(args.loader, args.file, limit and limit.enter, args.seccomp)
        rounds.interleave(ledger, setting, made, args.rounds, time.monotonic() + 60 * args.minutes)
    finally:
        if limit:
            limit.remove()
    rounds.summary(ledger, setting, [name for name in made if name != "uring"], ["uring"])
    for name in made:
        why = {row["path"] + ": " + row["why"] for row in ledger.of(setting) if row["subject"] == name and "why" in row}
        print(f"  {name}: {'; '.join(sorted(why))}")


main()
