// Ceilings of one machine, with nothing of the project in between: the link to the device, page cache and disk to the
// device by plain threads, pinned memory to scattered places of the device by every method there is, and the device's
// own memory. One JSON value a line.
//
//   nvcc -O3 -std=c++17 -arch=native probe.cu -o probe
//   probe link | tier | memory
//   probe file FILE THREADS BUFFERS CHUNK_BYTES copy|read cached|direct
#include <cuda_runtime.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#define CHECK(call)                                                                                  \
    do {                                                                                             \
        cudaError_t code = (call);                                                                   \
        if (code != cudaSuccess) {                                                                   \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(code));            \
            exit(1);                                                                                 \
        }                                                                                            \
    } while (0)

static double now() {
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

static double cpu() {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    auto seconds = [](timeval t) { return t.tv_sec + t.tv_usec / 1e6; };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Anonymous memory in huge pages, touched; registered if there is something to copy.
static char *host(size_t bytes, bool pinned) {
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, 1, bytes);
    if (pinned) CHECK(cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped));
    return static_cast<char *>(memory);
}

static void link_rates() {
    const size_t ring = 64 << 20, total = size_t(4) << 30;
    char *from = host(ring, true), *to;
    CHECK(cudaMalloc(&to, ring));
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (size_t chunk = 64 << 10; chunk <= ring; chunk *= 2) {
        for (int pass = 0; pass < 2; pass++) {
            size_t bytes = pass ? total : ring;
            double began = now(), enqueue = 0;
            for (size_t at = 0; at < bytes; at += chunk) {
                double call = now();
                CHECK(cudaMemcpyAsync(to + at % ring, from + at % ring, chunk, cudaMemcpyHostToDevice, stream));
                enqueue += now() - call;
                // The queue stays bounded, as a loader's does.
                if ((at / chunk) % 512 == 511) CHECK(cudaStreamSynchronize(stream));
            }
            CHECK(cudaStreamSynchronize(stream));
            if (pass)
                printf("{\"probe\":\"link\",\"chunk_bytes\":%zu,\"gb_per_s\":%.3f,\"call_us\":%.3f}\n", chunk,
                       bytes / (now() - began) / 1e9, enqueue * 1e6 / (bytes / chunk));
        }
    }
    // The call alone, while the queue is nearly empty: what one chunk costs the host.
    std::vector<double> calls;
    for (int i = 0; i < 200; i++) {
        double call = now();
        CHECK(cudaMemcpyAsync(to, from, 2 << 20, cudaMemcpyHostToDevice, stream));
        calls.push_back((now() - call) * 1e6);
        CHECK(cudaStreamSynchronize(stream));
    }
    std::sort(calls.begin(), calls.end());
    printf("{\"probe\":\"call\",\"chunk_bytes\":%d,\"median_us\":%.3f}\n", 2 << 20, calls[calls.size() / 2]);
}

struct FileProbe {
    int descriptor;
    size_t size, chunk;
    int buffers;
    bool copies;
    char *to;
    std::atomic<size_t> next{0};
};

static void reader(FileProbe *probe, char *from) {
    std::vector<cudaEvent_t> done(probe->buffers);
    cudaStream_t stream;
    if (probe->copies) {
        CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        for (auto &event : done) CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    }
    for (int turn = 0;; turn = (turn + 1) % probe->buffers) {
        size_t at = probe->next.fetch_add(probe->chunk);
        if (at >= probe->size) break;
        size_t want = std::min(probe->chunk, probe->size - at);
        char *buffer = from + turn * probe->chunk;
        if (probe->copies) CHECK(cudaEventSynchronize(done[turn]));
        for (size_t have = 0; have < want;) {
            // A direct read is aligned at both ends; the last one reaches past the end of the file.
            ssize_t got = pread(probe->descriptor, buffer + have, probe->chunk - have, at + have);
            if (got <= 0) {
                perror("pread");
                exit(1);
            }
            have += got;
        }
        if (!probe->copies) continue;
        CHECK(cudaMemcpyAsync(probe->to + at, buffer, want, cudaMemcpyHostToDevice, stream));
        CHECK(cudaEventRecord(done[turn], stream));
    }
    if (probe->copies) CHECK(cudaStreamSynchronize(stream));
}

static void file(char **argument) {
    const char *path = argument[0];
    int threads = atoi(argument[1]);
    FileProbe probe;
    probe.buffers = atoi(argument[2]);
    probe.chunk = strtoull(argument[3], nullptr, 10);
    probe.copies = !strcmp(argument[4], "copy");
    bool direct = !strcmp(argument[5], "direct");
    probe.descriptor = open(path, O_RDONLY | (direct ? O_DIRECT : 0));
    struct stat about;
    if (probe.descriptor < 0 || fstat(probe.descriptor, &about)) {
        perror(path);
        exit(1);
    }
    probe.size = about.st_size;
    if (probe.copies) {
        CHECK(cudaFree(nullptr));
        CHECK(cudaMalloc(&probe.to, probe.size + probe.chunk));
    }
    size_t part = probe.chunk * probe.buffers;
    double preparing = now();
    char *from = host(part * threads, probe.copies);
    double began = now(), before = cpu();
    std::vector<std::thread> all;
    for (int i = 0; i < threads; i++) all.emplace_back(reader, &probe, from + i * part);
    for (auto &thread : all) thread.join();
    double seconds = now() - began;
    printf("{\"probe\":\"file\",\"threads\":%d,\"buffers\":%d,\"chunk_bytes\":%zu,\"how\":\"%s %s\",\"bytes\":%zu,"
           "\"seconds\":%.4f,\"gb_per_s\":%.3f,\"cpu_seconds\":%.3f,\"prepare_seconds\":%.4f}\n",
           threads, probe.buffers, probe.chunk, argument[4], argument[5], probe.size, seconds,
           probe.size / seconds / 1e9, cpu() - before, began - preparing);
}

// A block copies one chunk at a time, 16 bytes a thread.
__global__ void gather(const uint4 *const *from, uint4 *const *to, size_t words, int chunks) {
    for (int chunk = blockIdx.y; chunk < chunks; chunk += gridDim.y) {
        const uint4 *source = from[chunk];
        uint4 *target = to[chunk];
        for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += size_t(gridDim.x) * blockDim.x)
            target[i] = source[i];
    }
}

static void tier() {
    const size_t bytes = size_t(2) << 30;
    char *from = host(bytes, true), *to;
    CHECK(cudaMalloc(&to, bytes));
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (size_t chunk : {size_t(16) << 10, size_t(64) << 10, size_t(256) << 10, size_t(1) << 20, size_t(4) << 20,
                         size_t(16) << 20}) {
        size_t count = bytes / chunk;
        std::vector<size_t> order(count), sizes(count, chunk);
        for (size_t i = 0; i < count; i++) order[i] = i;
        std::shuffle(order.begin(), order.end(), std::mt19937(1));
        std::vector<const void *> sources(count);
        std::vector<void *> targets(count);
        for (size_t i = 0; i < count; i++) {
            sources[i] = from + order[i] * chunk;
            targets[i] = to + order[(i * 7919 + 1) % count] * chunk;
        }
        const uint4 **source_list;
        uint4 **target_list;
        CHECK(cudaMalloc(&source_list, count * sizeof(void *)));
        CHECK(cudaMalloc(&target_list, count * sizeof(void *)));
        CHECK(cudaMemcpy(source_list, sources.data(), count * sizeof(void *), cudaMemcpyHostToDevice));
        CHECK(cudaMemcpy(target_list, targets.data(), count * sizeof(void *), cudaMemcpyHostToDevice));
        for (int method = 0; method < 3; method++) {
            std::vector<double> rates;
            for (int pass = 0; pass < (method ? 6 : 4); pass++) {
                double began = now();
                if (method == 0) {
                    for (size_t i = 0; i < count; i++)
                        CHECK(cudaMemcpyAsync(targets[i], sources[i], chunk, cudaMemcpyHostToDevice, stream));
                } else if (method == 1) {
                    cudaMemcpyAttributes attributes = {};
                    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
                    size_t first = 0;
                    for (size_t at = 0; at < count; at += 4096) {
                        size_t some = std::min<size_t>(4096, count - at);
                        CHECK(cudaMemcpyBatchAsync(targets.data() + at, sources.data() + at, sizes.data(), some,
                                                   &attributes, &first, 1, stream));
                    }
                } else {
                    // Blocks enough to keep the link full, whatever the chunk.
                    int wide = std::max<size_t>(1, std::min<size_t>(8, chunk / (64 << 10)));
                    gather<<<dim3(wide, std::min<size_t>(count, 512 / wide)), 512, 0, stream>>>(source_list, target_list,
                                                                                            chunk / 16, count);
                    CHECK(cudaGetLastError());
                }
                CHECK(cudaStreamSynchronize(stream));
                if (pass) rates.push_back(bytes / (now() - began) / 1e9);
            }
            std::sort(rates.begin(), rates.end());
            const char *names[] = {"single", "batch", "gather"};
            printf("{\"probe\":\"tier\",\"chunk_bytes\":%zu,\"method\":\"%s\",\"gb_per_s\":%.3f,\"min\":%.3f,\"max\":%.3f}\n",
                   chunk, names[method], rates[rates.size() / 2], rates.front(), rates.back());
        }
        CHECK(cudaFree(source_list));
        CHECK(cudaFree(target_list));
    }
}

static void memory() {
    const size_t bytes = size_t(4) << 30;
    char *a, *b;
    CHECK(cudaMalloc(&a, bytes));
    CHECK(cudaMalloc(&b, bytes));
    CHECK(cudaMemset(a, 1, bytes));
    std::vector<double> rates;
    for (int pass = 0; pass < 11; pass++) {
        CHECK(cudaDeviceSynchronize());
        double began = now();
        for (int i = 0; i < 4; i++) CHECK(cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice, nullptr));
        CHECK(cudaDeviceSynchronize());
        // What is read and what is written.
        if (pass) rates.push_back(4 * 2 * double(bytes) / (now() - began) / 1e9);
    }
    std::sort(rates.begin(), rates.end());
    printf("{\"probe\":\"memory\",\"gb_per_s\":%.1f,\"min\":%.1f,\"max\":%.1f}\n", rates[rates.size() / 2], rates.front(),
           rates.back());
}

int main(int count, char **argument) {
    if (count == 2 && !strcmp(argument[1], "link")) {
        link_rates();
    } else if (count == 2 && !strcmp(argument[1], "tier")) {
        tier();
    } else if (count == 2 && !strcmp(argument[1], "memory")) {
        memory();
    } else if (count == 8 && !strcmp(argument[1], "file")) {
        file(argument + 2);
    } else {
        fprintf(stderr, "probe link | tier | memory | file FILE THREADS BUFFERS CHUNK_BYTES copy|read cached|direct\n");
        return 2;
    }
    return 0;
}
