#!/bin/sh
# Fixed against adapting depth, interleaved: run.sh FILE ROUNDS. Needs root to drop the page cache.
#   cargo build --release -p spoc-io --example read_rate
set -eu
rate="${CARGO_TARGET_DIR:-target}/release/examples/read_rate"
for round in $(seq "$2"); do
    for depth in "--depth-max 8" ""; do
        echo 1 > /proc/sys/vm/drop_caches
        # shellcheck disable=SC2086 # two words, or none
        echo "$round ${depth:-adaptive} $("$rate" --mode direct $depth "$1")"
    done
done
