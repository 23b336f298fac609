#!/usr/bin/env python3
"""Compares `spoc-loader inspect --digest sha256 --json` with the Python packages `safetensors` and `gguf`.

Every *.safetensors and *.gguf file below the given paths is read by both: names, types, shapes, lengths and the SHA-256 of
each tensor's bytes must agree, and so must offsets in GGUF files. Files that only one of the two accepts are listed. Ends
with 1 when a file that both accept differs. See README.md.
"""
import argparse, glob, hashlib, json, multiprocessing, os, re, resource, subprocess, sys

BYTES_MAX = 1 << 30  # the packages read whole files, holes included
# gguf 0.19.0 counts 40 bytes for a block of Q8_1; ggml, whose type it is, has 36.
KNOWN = {"gguf": {"Q8_1"}}
SECONDS = 20  # gguf has files on which it does not return
PART = re.compile(r"-(\d{5})-of-\d{5}\.gguf$")


def digest(data):
    return hashlib.sha256(data).hexdigest()


def by_safetensors(path):
    import safetensors

    with open(path, "rb") as file:
        tensors = safetensors.deserialize(file.read())
    return {
        name: {"dtype": t["dtype"], "shape": t["shape"], "bytes": len(t["data"]), "digest": digest(t["data"])}
        for name, t in tensors
    }


def by_gguf(path):
    from gguf import GGUFReader

    found = {}
    # The package reads one file at a time; the parts of a split model are put together here.
    parts = sorted(glob.glob(glob.escape(PART.sub("", path)) + "-*-of-*.gguf")) if PART.search(path) else [path]
    for t in (tensor for part in parts for tensor in GGUFReader(part).tensors):
        data = t.data.tobytes()
        found[t.name] = {
            "dtype": t.tensor_type.name,
            "shape": [int(n) for n in t.shape],
            "bytes": len(data),
            "offset": int(t.data_offset),
            "digest": digest(data),
        }
    return found


def child(reader, path, answers):
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    sys.stderr = open(os.devnull, "w")
    try:
        answers.put((True, reader(path)))
    except BaseException as error:  # whatever it raises, it refuses the file
        answers.put((False, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"))


def independent(path):
    reader = by_gguf if path.endswith(".gguf") else by_safetensors
    answers = multiprocessing.Queue()
    process = multiprocessing.Process(target=child, args=(reader, path, answers))
    process.start()
    try:
        answer = answers.get(timeout=SECONDS)
    except Exception:
        answer = (False, f"no answer after {SECONDS} s" if process.is_alive() else "the process died")
    process.kill()
    process.join()
    return answer


def ours(loader, path):
    run = subprocess.run([loader, "inspect", path, "--digest", "sha256", "--json"], capture_output=True, text=True)
    answer = json.loads(run.stdout)
    if "error" in answer:
        return False, answer["error"]["kind"]
    return True, {t["name"]: t for t in answer["tensors"]}


def differences(mine, theirs):
    for name in sorted(set(mine) | set(theirs)):
        if name not in mine or name not in theirs:
            yield f"{name!r} is only in {'spoc' if name in mine else 'the package'}"
            continue
        for key, value in theirs[name].items():
            if mine[name][key] != value:
                yield f"{name!r}: {key}: spoc says {mine[name][key]}, the package {value}"


def files(paths):
    for path in paths:
        if os.path.isdir(path):
            for folder, _, names in sorted(os.walk(path)):
                yield from (os.path.join(folder, name) for name in sorted(names))
        else:
            yield path


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loader", default="target/release/spoc-loader")
    parser.add_argument("paths", nargs="+")
    args = parser.parse_args()
    agree, differ, only_spoc, only_package, refused, skipped, tensors = 0, 0, 0, 0, 0, 0, 0
    for path in files(args.paths):
        if not path.endswith((".safetensors", ".gguf")):
            continue
        if (part := PART.search(path)) and part[1] != "00001":
            continue
        if not os.path.isfile(path) or os.path.getsize(path) > BYTES_MAX:
            skipped += 1
            continue
        (fine, mine), (theirs_fine, theirs) = ours(args.loader, path), independent(path)
        if fine and theirs_fine:
            known = KNOWN.get(path.rsplit(".", 1)[1], set()) & {t["dtype"] for t in mine.values()}
            found = list(differences(mine, theirs))
            if found and known:
                print(f"known         {path}: {', '.join(known)}: {found[0]}")
                continue
            tensors += len(mine)
            agree, differ = agree + (not found), differ + bool(found)
            for line in found[:5]:
                print(f"DIFFER        {path}: {line}")
        elif fine:
            only_spoc += 1
            print(f"only spoc     {path}: {theirs}")
        elif theirs_fine:
            only_package += 1
            print(f"only package  {path}: spoc says {mine}")
        else:
            refused += 1
    print(f"{agree} files agree ({tensors} tensors), {differ} differ; both refuse {refused};", end=" ")
    print(f"only spoc takes {only_spoc}, only the package {only_package}; {skipped} skipped (no file, or over 1 GiB)")
    sys.exit(differ > 0)


if __name__ == "__main__":
    main()
