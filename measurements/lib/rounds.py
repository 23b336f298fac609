"""Interleaved rounds: every subject once a round, in an order of the round's own, each run kept as a line that a later
call does not repeat."""

import ctypes
import json
import mmap
import os
import random
import resource
import statistics
import subprocess
import sys
import time


def evict(paths):
    """Takes files out of the page cache."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def warm(paths):
    """Brings files into the page cache."""
    buffer = bytearray(16 << 20)
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def settle_memory(length):
    """Touches as much fresh memory as the next run will take, in huge pages, and gives it back. A virtual machine's
    memory costs its host's page faults when it is used for the first time, ten times what using it costs; whose turn
    that is must not depend on who ran before."""
    with mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        view = (ctypes.c_char * length).from_buffer(memory)
        ctypes.memset(ctypes.addressof(view), 1, length)
        del view


class Throttle:
    """A blkio group of cgroup v1 that holds the disk below `path` to a steady rate."""

    def __init__(self, path, bytes_per_second):
        device = os.stat(path).st_dev
        block = os.path.realpath(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
        if os.path.exists(os.path.join(block, "partition")):
            block = os.path.dirname(block)
        with open(os.path.join(block, "dev"), encoding="ascii") as file:
            disk = file.read().strip()
        self.folder = f"/sys/fs/cgroup/blkio/spoc-measure-{os.getpid()}"
        os.mkdir(self.folder)
        with open(self.folder + "/blkio.throttle.read_bps_device", "w", encoding="ascii") as file:
            file.write(f"{disk} {bytes_per_second}")

    def enter(self):
        """For `preexec_fn`: the child joins the group."""
        with open(self.folder + "/cgroup.procs", "w", encoding="ascii") as file:
            file.write(str(os.getpid()))

    def remove(self):
        os.rmdir(self.folder)


def run(command, env=None, enter=None, timeout_s=180):
    """Runs a command. Its last line of JSON, with seconds and CPU-seconds of the whole process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    environment = {**os.environ, **(env or {})}
    done = subprocess.run(
        command, env=environment, preexec_fn=enter, timeout=timeout_s, capture_output=True, text=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        return {"refused": (done.stderr.strip().splitlines() or ["no word"])[-1][:200]}
    start = done.stdout.index("{") if "{" in done.stdout else 0
    try:
        answer = json.loads(done.stdout[start:])
    except ValueError:
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        answer = json.loads(lines[-1])
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {**answer, "process_s": time.perf_counter() - began, "process_cpu_s": used}


class Ledger:
    """Runs that are done, a JSON line each."""

    def __init__(self, path):
        self.path, self.rows = path, []
        if path and os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                self.rows = [json.loads(line) for line in file if line.startswith("{")]

    def has(self, setting, number, subject):
        key = (setting, number, subject)
        return any((row.get("setting"), row.get("round"), row.get("subject")) == key for row in self.rows)

    def add(self, row):
        self.rows.append(row)
        line = json.dumps(row)
        print(line, flush=True)
        if self.path:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(line + "\n")

    def of(self, setting):
        return [row for row in self.rows if row.get("setting") == setting]


def interleave(ledger, setting, subjects, rounds, deadline=None, at_most=None):
    """`subjects` maps a name to a function that runs it once and gives a row with `gb_per_s` and `cpu_s_per_gb`, or
    `refused`: that one is not asked again. `at_most` bounds the rounds of some."""
    at_most = at_most or {}
    names = list(subjects)
    refused = {row["subject"] for row in ledger.of(setting) if "refused" in row}
    for number in range(rounds):
        # Not rotated: then each would always follow the same other.
        for name in random.Random(f"{setting} {number}").sample(names, len(names)):
            if deadline and time.monotonic() > deadline:
                print(f"{setting}: out of time in round {number}", file=sys.stderr)
                return
            if name in refused or number >= at_most.get(name, rounds) or ledger.has(setting, number, name):
                continue
            row = subjects[name]()
            if "refused" in row:
                refused.add(name)
            ledger.add({"setting": setting, "round": number, "subject": name, **row})


def interval(values):
    """Order-statistic interval of the median, at 95 % or the whole range for fewer than six."""
    ordered, n = sorted(values), len(values)
    tail, term, rank = 0.0, 0.5**n, 0
    for k in range(n // 2):
        tail += term
        if 2 * tail > 0.05:
            break
        rank, term = k, term * (n - k) / (k + 1)
    return ordered[rank], ordered[n - 1 - rank]


def ratios(rows, above, below, field="gb_per_s"):
    """`above` over `below` within each round."""
    by = {(row["round"], row["subject"]): row[field] for row in rows if field in row}
    rounds = sorted({number for number, _ in by})
    return [by[n, above] / by[n, below] for n in rounds if (n, above) in by and (n, below) in by]


def show(name, values):
    low, high = interval(values)
    middle = statistics.median(values)
    print(f"  {name:44} median {middle:.3f} [95 % {low:.3f} … {high:.3f}] min {min(values):.3f} max {max(values):.3f} n {len(values)}")


FIELDS = (
    ("gb_per_s", "GB/s"),
    ("cpu_s_per_gb", "CPU-s per GB"),
    ("moving_cpu_s_per_gb", "moving CPU-s per GB"),
    ("queue_busy_share", "time with reads at the disk"),
)


def summary(ledger, setting, ours, rivals):
    """Medians of each, and ours against the best and the thriftiest rival."""
    rows = ledger.of(setting)
    names = list(dict.fromkeys(row["subject"] for row in rows))
    if not rows:
        return
    print(f"\n{setting}")
    for name in names:
        for row in rows:
            if row["subject"] == name and "refused" in row:
                print(f"  {name:44} refused: {row['refused']}")
        for field, unit in FIELDS:
            values = [row[field] for row in rows if row["subject"] == name and field in row]
            if values:
                show(f"{name} {unit}", values)
    medians = {
        field: {
            name: statistics.median([row[field] for row in rows if row["subject"] == name and field in row])
            for name in names
            if any(row["subject"] == name and field in row for row in rows)
        }
        for field in ("gb_per_s", "cpu_s_per_gb")
    }
    present = [name for name in rivals if name in medians["gb_per_s"]]
    for mine in ours:
        if mine not in medians["gb_per_s"] or not present:
            continue
        best = max(present, key=medians["gb_per_s"].get)
        thrifty = min(present, key=medians["cpu_s_per_gb"].get)
        show(f"{mine} ÷ {best}, the fastest, GB/s", ratios(rows, mine, best))
        show(f"{mine} ÷ {thrifty}, the thriftiest, CPU", ratios(rows, mine, thrifty, "cpu_s_per_gb"))
