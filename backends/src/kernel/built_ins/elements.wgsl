// One number after another: fill, copy, add, scale, gather and the casts. Kernels have no bytes, so numbers lie
// packed in words. `built_ins/text.rs` puts the words in capitals in.

struct Numbers {
    // Where each vector begins, in elements from its binding's beginning; indices in words.
    first_a: u32,
    first_b: u32,
    first_out: u32,
    // Elements of `out` to write, and the words that hold them.
    count: u32,
    words: u32,
    // A number by value; its upper half, if it has one.
    low: u32,
    high: u32,
    // Gather: elements of a chunk, and of `a`.
    chunk: u32,
    count_a: u32,
}

var<immediate> numbers: Numbers;
BINDINGS

FUNCTIONS

fn result(e: u32) -> VALUE {
    RESULT
}

@compute @workgroup_size(256)
fn ENTRY(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let step = groups.x * 256u;
    let first_word = numbers.first_out / PER_OUTu;
    var k = id.x;
    loop {
        if k >= numbers.words {
            break;
        }
        let word = first_word + k;
        STORE
        // Not `k + step < words`, which may wrap.
        if numbers.words - k <= step {
            break;
        }
        k += step;
    }
}
