// What the API's copies cannot do: they move whole words, and not within one buffer.

struct Numbers { a: u32, b: u32, c: u32 }
var<immediate> n: Numbers;
@group(0) @binding(0) var<storage, read_write> to: array<u32>;
@group(0) @binding(1) var<storage, read_write> source: array<u32>;

// Of the word at index a, the bits in b become those of c.
@compute @workgroup_size(1)
fn patch_word() {
    to[n.a] = (to[n.a] & ~n.b) | (n.c & n.b);
}

// b words from index a on become c.
@compute @workgroup_size(256)
fn fill_words(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var word = id.x; word < n.b; word += groups.x * 256u) {
        to[n.a + word] = n.c;
    }
}

// c bytes from byte b of the source go to byte a.
@compute @workgroup_size(256)
fn move_bytes(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let end = n.a + n.c;
    for (var word = n.a / 4u + id.x; word * 4u < end; word += groups.x * 256u) {
        let first = word * 4u;
        let is_whole = first >= n.a && first + 4u <= end;
        if is_whole && (n.a - n.b) % 4u == 0u {
            to[word] = source[(first - n.a + n.b) / 4u];
            continue;
        }
        var bits = 0u;
        var kept = 0xffffffffu;
        for (var byte = 0u; byte < 4u; byte++) {
            let place = first + byte;
            if place >= n.a && place < end {
                let from_byte = place - n.a + n.b;
                let value = (source[from_byte / 4u] >> (from_byte % 4u * 8u)) & 0xffu;
                bits |= value << (byte * 8u);
                kept &= ~(0xffu << (byte * 8u));
            }
        }
        if kept == 0u { to[word] = bits; } else { to[word] = (to[word] & kept) | bits; }
    }
}
