// digest: four sums over the words of a vector, each word mixed with its number. Sums are added to `out`, so the
// digests of parts add up to that of the whole. It tells accidents, not adversaries.

struct Numbers {
    // Bits before the first byte in its word, and that word.
    shift: u32,
    word: u32,
    // Words of the vector, the last one filled up with zeroes, and the bits of it that count.
    words: u32,
    last: u32,
    // The number of the first word.
    number: u32,
    first_out: u32,
    count_out: u32,
}

var<immediate> numbers: Numbers;
@group(0) @binding(0) var<storage, read> a: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<atomic<u32>>;
var<workgroup> sums: array<atomic<u32>, 4>;

// The finaliser of MurmurHash3, 32 bits.
fn mix(x: u32) -> u32 {
    var h = x;
    h ^= h >> 16u;
    h *= 0x85ebca6bu;
    h ^= h >> 13u;
    h *= 0xc2b2ae35u;
    return h ^ (h >> 16u);
}

fn part(word: u32, number: u32, salt: u32) -> u32 {
    return mix(mix(word + salt) ^ (number * 0x9e3779b1u + salt));
}

fn word_at(i: u32) -> u32 {
    let n = numbers.word + i;
    var bits = a[n] >> numbers.shift;
    if numbers.shift != 0u && n + 1u < arrayLength(&a) {
        bits |= a[n + 1u] << (32u - numbers.shift);
    }
    return select(bits, bits & numbers.last, i == numbers.words - 1u);
}

@compute @workgroup_size(256)
fn ENTRY(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(local_invocation_index) own: u32,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let step = groups.x * 256u;
    var sum = vec4<u32>();
    var k = id.x;
    loop {
        if k >= numbers.words {
            break;
        }
        let word = word_at(k);
        let number = numbers.number + k;
        sum += vec4<u32>(
            part(word, number, 0x2545f491u),
            part(word, number, 0x8d7c6a35u),
            part(word, number, 0xb5297a4du),
            part(word, number, 0x68e31da4u),
        );
        if numbers.words - k <= step {
            break;
        }
        k += step;
    }
    for (var i = 0u; i < 4u; i++) {
        atomicAdd(&sums[i], sum[i]);
    }
    workgroupBarrier();
    if own < 4u && own < numbers.count_out {
        atomicAdd(&out[numbers.first_out + own], atomicLoad(&sums[own]));
    }
}
