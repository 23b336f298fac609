#!/usr/bin/env python3
"""What would eight devices of one host reach, and what limits them? An event-driven model of the loader's own stages.

Parameters come from measurements/h200/results; those that were never measured are named in ASSUMED and varied.
Standard library only. `python3 simulate.py` prints the tables of README.md; `--json` the figures.
"""

import argparse
import heapq
import json
import os
import sys

RAW = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "h200", "results", "h200-2026-11-30.jsonl")

# Threads that the loads of the raw lines read with, by cores: where the link was not what limited them, their rate is the
# threads'. With 16 cores it was, so that 12 threads read at least as fast.
THREADS = {2: 2, 4: 4, 16: 12}

# Not measured anywhere by this project; each is varied below.
ASSUMED = {
    # Cores of an eight-device host, in groups of 16 like the machine measured: two sockets of 64.
    "cores": 128,
    "nodes": 2,
    # Bytes a second that a socket's memory gives: 8 channels of DDR5-4800 are 307 GB/s by the data sheet, of which 0.8.
    "memory_gb_per_s": 246.0,
    # Memory traffic for a byte read from the page cache: the read itself, and a part of the chunk's write that does not stay
    # in the caches. 64 MiB rings stay (bigger ones were slower: README of h200).
    "read_traffic": 1.25,
    # Part of what a device's copy engine reads that comes from memory and not from the caches.
    "copy_traffic": 0.25,
    # Chunks whose copies become one: those that have come together and are neighbours in the ring and the file. Up to 8.
    "merged": 4,
    # What a dispatcher does for a chunk and for each lane that it tells, µs: bounded above by all that the measured copy
    # thread does for a chunk (4.0 µs).
    "dispatch_us": 2.0,
    "tell_us": 0.5,
    # NVLink between devices of the host, a direction and device, GB/s: 450 by the data sheet (H200), of which 0.8.
    "nvlink_gb_per_s": 360.0,
}


def measured(path):
    """Link and thread costs out of the raw lines."""
    link, call_us, streams, copy_us = {}, [], {}, []
    for line in open(path, encoding="utf-8"):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if row.get("probe") == "link":
            link[row["chunk_bytes"]] = row["gb_per_s"]
            call_us.append(row["call_us"])
        warm = "page-cache" in str(row.get("what")) and "192 tensors" in str(row.get("what"))
        if row.get("who") == "spoc" and warm and row.get("cores") and "stream_gb_per_s" in row:
            streams.setdefault(row["cores"], []).append(row["stream_gb_per_s"])
    if not link or not streams:
        sys.exit(f"{path}: expected lines of the probe's link and of loads, found none")
    sizes = sorted(link)
    best = max(link.values())
    one_mib = link[1 << 20]
    fixed_us = (1 << 20) / one_mib / 1e3 - (1 << 20) / best / 1e3
    median = lambda values: sorted(values)[(len(values) - 1) // 2]
    return {
        "link_gb_per_s": best,
        "copy_fixed_us": fixed_us,
        "call_us": median(call_us),
        "link_by_size": {size: link[size] for size in sizes},
        "streams": {cores: median(values) for cores, values in streams.items()},
    }


def read_alone(streams, threads, cores):
    """GB/s of so many threads: as many groups of 16 cores, each as the machine measured."""
    groups = max(1, cores // 16)
    share = min(threads, cores) / groups
    points = sorted((THREADS[cores], rate) for cores, rate in streams.items())
    if share <= points[0][0]:
        return points[0][1] * share / points[0][0] * groups
    for (a, low), (b, high) in zip(points, points[1:]):
        if share <= b:
            return (low + (high - low) * (share - a) / (b - a)) * groups
    return points[-1][1] * groups


class Server:
    """Serves one after the other at a rate; knows how long it was busy."""

    def __init__(self):
        self.free = 0.0
        self.busy = 0.0

    def take(self, now, seconds):
        self.free = max(self.free, now) + seconds
        self.busy += seconds
        return self.free


def simulate(p, *, devices, mode, total, threads, chunk=1 << 20, ring=64, peers=False, disk=None, cores=None, nodes=None):
    """Loads `total` bytes of a file. `mode`: "same" (every device gets all) or "shares" (each byte to one of them).

    With `peers`, each byte goes over one link only and from there over NVLink to the others.
    """
    cores = cores or p["cores"]
    nodes = nodes or min(p["nodes"], devices)
    per_node = max(1, threads // nodes)
    thread_rate = read_alone(p["streams"], per_node * nodes, cores) * 1e9 / (per_node * nodes)
    memory = [Server() for _ in range(nodes)]
    dispatch = [Server() for _ in range(nodes)]
    hosts = [Server() for _ in range(devices)]
    links = [Server() for _ in range(devices)]
    nvlinks = [Server() for _ in range(devices)]
    store = Server()
    free = [ring] * nodes
    idle = [per_node] * nodes
    left = [total // nodes // chunk] * nodes
    given = [0] * nodes
    moved = 0
    starved = [0.0] * nodes
    events = []
    order = 0
    memory_rate = p["memory_gb_per_s"] * 1e9 / (chunk or 1)

    def push(time, what, *args):
        nonlocal order
        order += 1
        heapq.heappush(events, (time, order, what, args))

    def begin_reads(now, node):
        while idle[node] and free[node] and left[node]:
            idle[node] -= 1
            free[node] -= 1
            left[node] -= 1
            by_thread = now + chunk / thread_rate
            by_memory = memory[node].take(now, p["read_traffic"] / memory_rate)
            by_store = store.take(now, chunk / (disk * 1e9)) if disk else now
            push(max(by_thread, by_memory, by_store), "read", node)

    def copy_to(now, node, device):
        told = hosts[device].take(now, p["call_us"] * 1e-6)
        memory_done = memory[node].take(now, p["copy_traffic"] / memory_rate)
        seconds = chunk / (p["link_gb_per_s"] * 1e9) + p["copy_fixed_us"] * 1e-6 / p["merged"]
        return max(links[device].take(told, seconds), memory_done)

    for node in range(nodes):
        begin_reads(0.0, node)
    now = 0.0
    while events:
        now, _, what, args = heapq.heappop(events)
        if what == "read":
            (node,) = args
            idle[node] += 1
            beside = [d for d in range(devices) if d * nodes // devices == node]
            legs = list(range(devices)) if mode == "same" and not peers else [beside[given[node] % len(beside)]]
            given[node] += 1
            told = dispatch[node].take(now, (p["dispatch_us"] + p["tell_us"] * len(legs)) * 1e-6)
            ends = [copy_to(told, node, device) for device in legs]
            moved += chunk * len(legs)
            push(max(ends), "returned", node)
            if peers and mode == "same":
                # The device that has it sends it to the others, each copy over its own way out.
                out = nvlinks[legs[0]].take(ends[0], (devices - 1) * chunk / (p["nvlink_gb_per_s"] * 1e9))
                moved += chunk * (devices - 1)
                push(out, "spread")
            begin_reads(now, node)
        elif what == "returned":
            (node,) = args
            free[node] += 1
            begin_reads(now, node)
    use = lambda servers: max(server.busy for server in servers) / now
    busy = {
        "links": use(links),
        "memory": use(memory),
        "dispatchers": use(dispatch),
        "reading threads": min(1.0, total / now / (thread_rate * per_node * nodes)),
        "nvlink": use(nvlinks),
        "disk": store.busy / now,
    }
    return {
        "seconds": now,
        "aggregate_gb_per_s": moved / now / 1e9,
        "file_gb_per_s": total / now / 1e9,
        "limit": max(busy, key=busy.get),
        "busy": {name: round(value, 3) for name, value in busy.items()},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="figures instead of tables")
    parser.add_argument("--raw", default=RAW, help="the raw lines of measurements/h200")
    args = parser.parse_args()
    found = measured(args.raw)
    p = {**ASSUMED, **{key: found[key] for key in ("link_gb_per_s", "copy_fixed_us", "call_us", "streams")}}
    total = 8 << 30
    answers = {"measured": found, "assumed": ASSUMED, "validation": [], "cases": [], "sensitivity": []}

    for cores, seen in sorted(found["streams"].items()):
        got = simulate(p, devices=1, mode="shares", total=total, threads=THREADS[cores], cores=16, nodes=1)
        row = {"cores": cores, "measured": round(seen, 1), "model": round(got["file_gb_per_s"], 1)}
        answers["validation"].append({**row, "limit": got["limit"]})

    def case(name, **how):
        got = simulate(p, total=total, **how)
        answers["cases"].append({"case": name, **how, **got})

    for devices in (1, 2, 8):
        for mode in ("same", "shares"):
            case(f"{mode}, default threads", devices=devices, mode=mode, threads=16 * min(2, devices))
    case("shares, 8 threads a node", devices=8, mode="shares", threads=16)
    case("shares, 48 threads a node", devices=8, mode="shares", threads=96)
    case("shares, 48 threads a node, ring 256", devices=8, mode="shares", threads=96, ring=256)
    case("same, 48 threads a node", devices=8, mode="same", threads=96)
    case("same over NVLink, default threads", devices=8, mode="same", threads=32, peers=True)
    case("same over NVLink, 48 threads a node", devices=8, mode="same", threads=96, peers=True)
    case("same from a disk of 2 GB/s", devices=8, mode="same", threads=32, disk=2.0)
    case("shares from a disk of 50 GB/s", devices=8, mode="shares", threads=96, disk=50.0)

    for name, values in (
        ("memory_gb_per_s", (61.0, 92.0, 123.0, 184.0)),
        ("read_traffic", (1.25, 2.0, 3.0)),
        ("merged", (1, 8)),
        ("copy_traffic", (0.25, 1.0)),
        ("dispatch_us", (2.0, 4.0, 8.0)),
        ("tell_us", (0.5, 1.0, 2.0)),
        ("nvlink_gb_per_s", (150.0, 360.0)),
    ):
        for value in values:
            varied = {**p, name: value}
            row = {"what": name, "value": value}
            for label, how in (
                ("same", {"mode": "same", "threads": 32}),
                ("shares", {"mode": "shares", "threads": 32}),
                ("same over NVLink, 96 threads", {"mode": "same", "threads": 96, "peers": True}),
            ):
                got = simulate(varied, devices=8, total=total, **how)
                row[label] = round(got["aggregate_gb_per_s"])
                row[f"{label}: limit"] = got["limit"]
            answers["sensitivity"].append(row)

    if args.json:
        print(json.dumps(answers))
        return
    print("one device: measured, model (GB/s)")
    for row in answers["validation"]:
        print(f"  {row['cores']:>3} cores  {row['measured']:6.1f}  {row['model']:6.1f}  {row['model'] / row['measured']:.2f}  {row['limit']}")
    print("cases: over all links, of the file (GB/s); what is busy")
    for row in answers["cases"]:
        busy = ", ".join(f"{name} {value:.2f}" for name, value in row["busy"].items() if value > 0.3)
        print(f"  {row['devices']} devices, {row['case']:<38} {row['aggregate_gb_per_s']:6.1f} {row['file_gb_per_s']:6.1f}  {row['limit']}: {busy}")
    print("eight devices, one assumption changed (GB/s over all links, limit)")
    for row in answers["sensitivity"]:
        rest = "; ".join(f"{key} {row[key]} ({row[f'{key}: limit']})" for key in row if key not in ("what", "value") and not key.endswith(": limit"))
        print(f"  {row['what']} {row['value']}: {rest}")


if __name__ == "__main__":
    main()
