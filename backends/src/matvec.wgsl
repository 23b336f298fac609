// A row for every 32 threads; the matrix and the vector come four numbers at a time.
struct Numbers { words: u32, rows: u32 }
var<immediate> numbers: Numbers;
@group(0) @binding(0) var<storage, read> matrix: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> vector: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
var<workgroup> sums: array<f32, 256>;

@compute @workgroup_size(256)
fn spoc_matvec(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
               @builtin(local_invocation_index) local: u32) {
    let lane = local % 32u;
    for (var first = group.x * 8u; first < numbers.rows; first += groups.x * 8u) {
        let row = first + local / 32u;
        var sum = 0.0;
        if row < numbers.rows {
            for (var i = lane; i < numbers.words; i += 32u) { sum += dot(matrix[row * numbers.words + i], vector[i]); }
        }
        sums[local] = sum;
        workgroupBarrier();
        for (var half = 16u; half > 0u; half /= 2u) {
            if lane < half { sums[local] += sums[local + half]; }
            workgroupBarrier();
        }
        if lane == 0u && row < numbers.rows { out[row] = sums[local]; }
        workgroupBarrier();
    }
}
