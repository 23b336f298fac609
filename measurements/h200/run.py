#!/usr/bin/env python3
"""Loads to one GPU against raw ceilings and other loaders, interleaved, medians with their spread.

run.py --loader SPOC_LOADER --probe PROBE --rivals BENCH_LOADERS.PY --folder DISK --shm TMPFS --out FILE [PARTS…]

PARTS of: machine link memory small overlap first warm warm18k tmpfs slices switch check cold (default: all, in that order).
--rivals is a program that is called as `PROGRAM LOADER FILE cold|warm 1` and prints a JSON line with s and cpu_s; without it
only the ceilings are compared with. Everything is generated. Raw lines go to FILE as they
come; the table at the end says for every figure whether it was reached.
"""
import argparse, json, os, struct, subprocess, sys, time

GB = 1e9
ALL = "machine link memory small overlap first warm warm18k tmpfs slices switch check cold".split()


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--loader", required=True)
    parser.add_argument("--probe")
    parser.add_argument("--rivals")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--folder", default="/tmp/spoc-h200")
    parser.add_argument("--shm", default="/dev/shm/spoc-h200")
    parser.add_argument("--out", default="h200.jsonl")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cold-rounds", type=int, default=4)
    parser.add_argument("--scale", type=float, default=1.0, help="of the files' sizes")
    parser.add_argument("--cores", default="16,4,2")
    parser.add_argument("--deadline", type=float, default=570, help="seconds after which no part is begun")
    parser.add_argument("--probes", default="8x4x2,12x4x2,16x4x2,8x2x4,12x2x4")
    parser.add_argument("--rival-rounds", type=int, default=3)
    parser.add_argument("--loads", default="", help="more arguments of the loader, separated by commas")
    parser.add_argument("parts", nargs="*", default=ALL)
    return parser.parse_args()


ARGS = parse()
BEGAN = time.time()
OUT = open(ARGS.out, "a", buffering=1)
ROWS = []


def note(**line):
    line["at"] = round(time.time() - BEGAN, 1)
    text = json.dumps(line)
    print(text, flush=True)
    OUT.write(text + "\n")


def late():
    return time.time() - BEGAN > ARGS.deadline


def call(command, what, env=None, timeout=180):
    """The JSON lines that a program prints; a failure is noted and is an empty list."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env={**os.environ, **(env or {})})
    except subprocess.TimeoutExpired:
        note(failed=what, why=f"longer than {timeout} s")
        return []
    lines = []
    for line in run.stdout.splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            pass
    if run.returncode != 0 or not lines:
        note(failed=what, status=run.returncode, why=(run.stderr or run.stdout)[-600:])
        return []
    return lines


def model(path, count, size, shape, layers=6):
    """A safetensors file of bytes that do not compress. Made once."""
    if os.path.exists(path):
        return path
    os.makedirs(os.path.dirname(path), exist_ok=True)
    header, offset = {}, 0
    for i in range(count):
        name = f"model.layers.{i // layers}.w{i % layers}.weight"
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 8)
    block = os.urandom(64 << 20)
    with open(path + ".part", "wb", buffering=0) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        left, turn = offset, 0
        while left:
            start = (turn * 7919) % len(block)
            left -= file.write(memoryview(block)[start:][:left])
            turn += 1
    os.rename(path + ".part", path)
    return path


def scaled(count):
    return max(1, int(count * ARGS.scale))


def big(folder=None):
    # 192 tensors of 52.4 MB: 10.07 GB.
    return model(f"{folder or ARGS.folder}/big.safetensors", scaled(192), 52428800, [6400, 4096])


def many(folder=None):
    # 18,000 tensors of 340,000 bytes, which is no multiple of 256: 6.12 GB.
    return model(f"{folder or ARGS.folder}/many.safetensors", scaled(18000), 340000, [340, 500], layers=375)


def size_of(path):
    return os.path.getsize(path)


def evict(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def warm(path):
    buffer = bytearray(16 << 20)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def pinned_to(cores):
    return ["taskset", "-c", f"0-{cores - 1}"] if cores and cores < (os.cpu_count() or 1) else []


def ours(path, cores=None, quick=True, more=(), what="load"):
    command = pinned_to(cores) + [ARGS.loader, "bench", "load", path, "--backend", ARGS.backend, "--runs", "1", "--json"]
    command += (["--quick"] if quick else []) + list(more) + [word for word in ARGS.loads.split(",") if word]
    lines = call(command, f"ours {what}")
    for line in lines:
        note(who="spoc", what=what, cores=cores, **line)
    return lines[-1] if lines else None


def rival(name, path, mode, cores=None, what="load"):
    if not ARGS.rivals:
        return None
    env = {"RUNAI_STREAMER_FS_STRATEGY": "sync_buffered", "FASTSAFETENSORS_ODIRECT": "0"} if mode == "warm" else {}
    if ARGS.backend != "cuda":
        env["BENCH_DEV"] = "cpu"
    lines = call(pinned_to(cores) + [sys.executable, ARGS.rivals, name, path, mode, "1"], f"{name} {what}", env)
    for line in lines:
        note(who=name, what=what, cores=cores, **line)
    return lines[-1] if lines else None


def probe(path, shape, how="copy", cached="cached", cores=None, what="load"):
    if not ARGS.probe:
        return None
    threads, buffers, mib = shape.split("x")
    chunk = str(int(float(mib) * (1 << 20)))
    lines = call(pinned_to(cores) + [ARGS.probe, "file", path, threads, buffers, chunk, how, cached], f"probe {what}")
    for line in lines:
        note(who="probe", what=what, cores=cores, shape=shape, **line)
    return lines[-1] if lines else None


def median(values):
    return sorted(values)[(len(values) - 1) // 2] if values else None


def told(values):
    return f"{median(values):.2f} ({min(values):.2f}–{max(values):.2f})" if values else "–"


def best(columns):
    """The name and median of the fastest of several."""
    medians = {name: median(values) for name, values in columns.items() if values}
    return max(medians.items(), key=lambda item: item[1]) if medians else (None, None)


def row(what, ours_said, against, need, reached):
    ROWS.append((what, ours_said, against, need, {True: "reached", False: "NOT reached", None: "not measured"}[reached]))
    note(row=what, ours=ours_said, against=against, need=need, reached=reached)


def ratios(what, cell, of_probe, of_rival, goal=None):
    """Rows of one cell: against the best raw probe, with and without what comes before the first read; against the best
    rival; against a number."""
    own, streams, probes, whole_probes, rivals = (cell[key] for key in ("own", "streams", "probes", "whole", "rivals"))
    mine = median(own)
    rival_name, rival_best = best(rivals)
    for name, values, raw in (("end to end", own, whole_probes), ("streaming", streams, probes)):
        if not of_probe:
            break
        shape, rate = best(raw)
        ratio = median(values) / rate if values and rate else None
        row(f"{what}, {name}", told(values), f"probe {shape} {told(raw.get(shape, []))}" if rate else "–",
            f"≥ {of_probe} × probe" + (f": {ratio:.3f}" if ratio else ""), ratio >= of_probe if ratio else None)
    if of_rival:
        ratio = mine / rival_best if mine and rival_best else None
        row(f"{what}, end to end", told(own), f"{rival_name} {told(rivals.get(rival_name, []))}" if rival_best else "–",
            f"≥ {of_rival} × rival" + (f": {ratio:.3f}" if ratio else ""), ratio >= of_rival if ratio else None)
    if goal:
        row(f"{what}, end to end", told(own), "–", f"≥ {goal} GB/s", mine >= goal if mine else None)


def cell(what, path, shapes, rivals, cores=None, rounds=None, mode="warm"):
    """One file on so many cores: ours, every shape of the probe and every rival in turn, round after round."""
    found = {"own": [], "streams": [], "probes": {}, "whole": {}, "rivals": {}}
    for number in range(rounds or ARGS.rounds):
        if late():
            break
        line = ours(path, cores, what=what)
        if line:
            found["own"].append(line["gb_per_s"])
            found["streams"].append(line["stream_gb_per_s"])
        for shape in shapes:
            line = probe(path, shape, cores=cores, what=what)
            if line:
                found["probes"].setdefault(shape, []).append(line["gb_per_s"])
                seconds = line["seconds"] + line["prepare_seconds"]
                found["whole"].setdefault(shape, []).append(line["bytes"] / GB / seconds)
        for name in rivals if number < ARGS.rival_rounds else []:
            line = rival(name, path, mode, cores, what)
            if line:
                found["rivals"].setdefault(name, []).append(size_of(path) / GB / line["s"])
    return found


RIVALS_WARM = ["instanttensor_buffered", "st_prefetch", "fastsafetensors_tuned"]


def part_machine():
    for command in (["nproc"], ["uname", "-r"], ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]):
        try:
            note(machine=" ".join(command), says=subprocess.run(command, capture_output=True, text=True).stdout.strip())
        except OSError as error:
            note(machine=" ".join(command), says=str(error))
    note(machine="spoc-loader --version", says=subprocess.run([ARGS.loader, "--version"], capture_output=True, text=True).stdout.strip())


def part_link():
    if ARGS.probe:
        for line in call([ARGS.probe, "link"], "probe link"):
            note(who="probe", **line)
    for line in call([ARGS.loader, "bench", "link", "--backend", ARGS.backend, "--json"], "bench link"):
        note(who="spoc", what="link", **line)


def part_memory():
    for line in call([ARGS.probe, "memory"], "probe memory") if ARGS.probe else []:
        note(who="probe", **line)


def part_small():
    probes = {}
    for line in call([ARGS.probe, "tier"], "probe tier") if ARGS.probe else []:
        note(who="probe", **line)
        probes.setdefault(line["chunk_bytes"], {})[line["method"]] = line["gb_per_s"]
    tier = str(int((2 << 30) * min(1.0, ARGS.scale * 2)))
    lines = call([ARGS.loader, "bench", "small", "--backend", ARGS.backend, "--tier-bytes", tier, "--json"], "bench small")
    for line in lines:
        note(who="spoc", what="small", **line)
        for size in line["sizes"]:
            raw = probes.get(size["chunk_bytes"], {})
            name, rate = max(raw.items(), key=lambda item: item[1]) if raw else (None, None)
            ratio = size["gb_per_s"] / rate if rate else None
            row(f"host tier to slots, {size['chunk_bytes'] >> 10} KiB", f"{size['gb_per_s']:.2f}", f"{name} {rate}",
                "≥ 0.97 × raw" + (f": {ratio:.3f}" if ratio else ""), ratio >= 0.97 if ratio else None)
        two = next((size for size in line["sizes"] if size["chunk_bytes"] == 1 << 20), line["sizes"][-1])
        row("host time to enqueue, 8 chunks", f"{two['eight_us']:.2f} µs", "–", "≤ 5 µs a chunk", two["eight_us"] <= 5)
        row("host time to enqueue, alone", f"{two['alone_us']:.2f} µs", "–", "≤ 8 µs", two["alone_us"] <= 8)


def part_overlap():
    slot = str(int((256 << 20) * min(1.0, ARGS.scale * 2)))
    command = [ARGS.loader, "bench", "overlap", "--backend", ARGS.backend, "--slot-bytes", slot, "--json"]
    for line in call(command, "bench overlap"):
        note(who="spoc", what="overlap", **line)
        row("streaming beside compute", f"wall {line['wall_ratio']:.3f} ({line['wall_ratio_min']:.3f}–{line['wall_ratio_max']:.3f})",
            "the slower alone", "≤ 1.03", line["wall_ratio"] <= 1.03)
        row("… the kernel", f"{line['compute_gb_per_s']:.0f} GB/s", f"device copy {line['device_copy_gb_per_s']:.0f}",
            f"≥ 0.8: {line['compute_ratio']:.3f}", line["compute_ratio"] >= 0.8)
        row("… copy over compute", f"{line['balance']:.3f}", "–", "0.85–1.15", 0.85 <= line["balance"] <= 1.15)


def part_first():
    path = big()
    warm(path)
    times, enqueue = [], []
    for _ in range(ARGS.rounds):
        line = ours(path, quick=False, what="first layer")
        if line and line.get("first_layer"):
            times.append(line["first_layer"]["milliseconds"])
            enqueue.append(line["enqueue_us"])
    row("first layer resident, warm", f"{told(times)} ms", "–", "≤ 50 ms", median(times) <= 50 if times else None)
    row("copy thread for each chunk", f"{told(enqueue)} µs", "–", "≤ 5 µs", median(enqueue) <= 5 if enqueue else None)


def part_warm():
    path = big()
    warm(path)
    goals = {16: 50, 4: 24, 2: 12}
    for cores in [int(cores) for cores in ARGS.cores.split(",")]:
        if late():
            break
        # Fewer cores want fewer threads: the probe has its best of several either way.
        many_cores = cores >= 16
        shapes = ARGS.probes.split(",") if many_cores else [f"{cores}x4x2", f"{2 * cores}x4x2", f"{cores}x4x1", f"{cores}x2x4"]
        rivals = RIVALS_WARM if many_cores else RIVALS_WARM[:2]
        what = f"page-cache-warm, 192 tensors, {cores} cores"
        found = cell(what, path, shapes, rivals, cores, ARGS.rounds if many_cores else max(1, ARGS.rounds - 2))
        ratios(what, found, 0.98, 1.15, goals.get(cores))


def part_warm18k():
    path = many()
    warm(path)
    what = "page-cache-warm, 18,000 tensors"
    ratios(what, cell(what, path, ["8x2x4"], ["st_prefetch", "fastsafetensors_tuned"]), None, 1.8, 45)


def part_tmpfs():
    path = big(ARGS.shm)
    # The first passes over fresh memory are slower than any later one, whoever makes them.
    for _ in range(4):
        probe(path, "16x4x1", "read", what="first passes")
    what = "tmpfs, 192 tensors"
    found = cell(what, path, ARGS.probes.split(",") + ["16x4x1"], ["instanttensor_buffered"])
    ratios(what, found, 0.98, 1.0, 50)
    os.remove(path)


def part_slices():
    path = big()
    warm(path)
    command = [ARGS.loader, "bench", "slices", path, "--backend", ARGS.backend, "--json"]
    for line in call(command, "bench slices"):
        note(who="spoc", what="slices", **line)
        for kind, least in (("column", 0.9), ("row", 0.8)):
            ratio = line[kind]["ratio"]
            row(f"{kind} slices of 8, warm", f"{line[kind]['gb_per_s']:.2f}", f"whole {line['whole_gb_per_s']:.2f}",
                f"≥ {least}: {ratio:.3f}", ratio >= least)


def part_switch():
    path = big()
    other = many()
    warm(path)
    warm(other)
    for line in call([ARGS.loader, "bench", "switch", other, path, "--backend", ARGS.backend, "--json"], "bench switch"):
        note(who="spoc", what="switch", **line)
        row("switch model A → B, host tier", f"{line['seconds']:.3f} s", f"link {line['link_gb_per_s']:.1f} GB/s",
            f"≤ {line['allowed_seconds']:.3f} s", line["seconds"] <= line["allowed_seconds"])


def part_check():
    for path in (big(), many()):
        warm(path)
        line = ours(path, more=["--check"], what="check")
        row(f"every byte of {os.path.basename(path)}", "equal" if line else "failed", "the file", "equal", bool(line))


def part_cold():
    path = big()
    own, raw, pairs, cpu = [], [], [], []
    others = {name: [] for name in ["fastsafetensors_tuned", "instanttensor", "st_prefetch"]}

    def ceiling():
        evict(path)
        line = probe(path, "8x1x1", "read", "direct", what="cold")
        return line and line["bytes"] / GB / (line["seconds"] + line["prepare_seconds"])

    def load():
        evict(path)
        line = ours(path, what="cold")
        if line:
            cpu.append(line["cpu_seconds_per_10_gb"])
        return line and line["gb_per_s"]

    for number in range(ARGS.cold_rounds):
        if late():
            break
        # Each goes first every other time: the disk may be slower after a while.
        if number % 2:
            rate, limit = load(), ceiling()
        else:
            limit, rate = ceiling(), load()
        if limit and rate:
            own.append(rate)
            raw.append(limit)
            pairs.append(rate / limit)
        # A rival each round: the disk is the same for all of them, and each costs its 5 s.
        name = list(others)[number % len(others)]
        evict(path)
        line = rival(name, path, "cold", what="cold")
        if line:
            others[name].append(size_of(path) / GB / line["s"])
    row("cold, 10 GB, end to end", told(own), f"raw {told(raw)}", f"≥ 0.97 × raw, in pairs: {told(pairs)}",
        median(pairs) >= 0.97 if pairs else None)
    name, rate = best(others)
    row("cold, 10 GB, end to end", told(own), f"{name} {told(others.get(name, []))}", "≥ best rival",
        median(own) >= rate if own and rate else None)
    row("cold, processor", f"{told(cpu)} s for 10 GB", "–", "≤ 0.5 s", median(cpu) <= 0.5 if cpu else None)


def main():
    for name in ARGS.parts:
        if late():
            note(left_out=name, why="no time left")
            continue
        began = time.time()
        try:
            globals()[f"part_{name}"]()
        except Exception as error:  # The other parts still count.
            note(failed=name, why=repr(error))
        note(part=name, seconds=round(time.time() - began, 1))
    width = [max(len(str(line[column])) for line in ROWS) for column in range(5)] if ROWS else []
    for line in ROWS:
        text = "  ".join(str(field).ljust(width[column]) for column, field in enumerate(line))
        print(text, flush=True)
        OUT.write("# " + text + "\n")


main()
