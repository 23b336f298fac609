/* Streams a model's groups through fewer slots than there are groups, as an inference engine does with layers, then
 * loads the whole model and checks that both ways brought the same bytes.
 *
 *   stream MODEL [BACKEND [SLOTS [IO]]]
 *
 * Built with any C compiler against libspoc_cache (docs/c-api.md). On the native backend the "kernel" below is a loop
 * on the host; on a GPU it would be a launch on the engine's stream, given the addresses of the slots.
 */
#include "spoc_cache.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Stops at the first call that fails, with its line. */
#define CHECK(call)                                                                                       \
  do {                                                                                                    \
    spoc_status status_ = (call);                                                                         \
    if (status_ != SPOC_OK) {                                                                             \
      fprintf(stderr, "stream: %s: %s: %s\n", #call, spoc_status_name(status_), spoc_error_message());    \
      exit(1);                                                                                            \
    }                                                                                                     \
  } while (0)

/* FNV-1a, over the bytes of a tensor: what this example computes with weights. */
static uint64_t digest(uint64_t state, const unsigned char *bytes, uint64_t count) {
  for (uint64_t i = 0; i < count; i++) {
    state = (state ^ bytes[i]) * UINT64_C(1099511628211);
  }
  return state;
}

static const uint64_t DIGEST_BEGIN = UINT64_C(14695981039346656037);

/* Bytes of one tensor of a leased group, read back where the host cannot address device memory. */
static uint64_t visit_tensor(spoc_lease lease, uint32_t position) {
  spoc_place place = {.struct_size = sizeof place};
  CHECK(spoc_lease_tensor(lease, 0, position, &place));
  if (place.host != NULL || place.bytes == 0) {
    return digest(DIGEST_BEGIN, place.host, place.bytes);
  }
  unsigned char *copy = malloc(place.bytes);
  if (copy == NULL) {
    fprintf(stderr, "stream: out of memory\n");
    exit(1);
  }
  CHECK(spoc_lease_read(lease, 0, position, 0, copy, place.bytes));
  uint64_t sum = digest(DIGEST_BEGIN, copy, place.bytes);
  free(copy);
  return sum;
}

static int32_t progress(void *user, uint64_t copied_bytes, uint64_t bytes) {
  *(uint64_t *)user = copied_bytes;
  return copied_bytes > bytes; /* never: 0 goes on */
}

/* The loop of an engine: the next group is wanted while this one is used. */
static void stream_groups(spoc_cache cache, spoc_stream stream, spoc_model model, uint32_t number, uint64_t *digests) {
  spoc_model_info info = {.struct_size = sizeof info};
  CHECK(spoc_model_describe(model, &info));
  spoc_lease next = {0};
  for (uint32_t group = 0; group < info.groups; group++) {
    spoc_lease lease = next;
    if (group == 0) {
      spoc_key key;
      CHECK(spoc_cache_key(cache, number, group, &key));
      CHECK(spoc_acquire(cache, &key, 1, stream, &lease));
    }
    if (group + 1 < info.groups) {
      spoc_key key;
      CHECK(spoc_cache_key(cache, number, group + 1, &key));
      CHECK(spoc_acquire(cache, &key, 1, stream, &next));
    }
    /* Waits for the disk alone. A launch on the stream would now run behind the copies, on the device. */
    CHECK(spoc_lease_wait(lease, -1));
    /* The host is going to read, so it waits for the copies as well. */
    CHECK(spoc_stream_synchronize(stream));
    spoc_group described = {.struct_size = sizeof described};
    CHECK(spoc_model_group(model, group, &described));
    for (uint32_t position = 0; position < described.tensors; position++) {
      spoc_member member = {.struct_size = sizeof member};
      CHECK(spoc_model_member(model, group, position, &member));
      digests[member.tensor] = visit_tensor(lease, position);
    }
    /* The host is done reading: nothing on any stream uses the slot. After a launch, its stream would be named. */
    CHECK(spoc_lease_release(lease, NULL, 0));
  }
}

/* Takes what happened out of the queue; every fill that began has ended by now. */
static void tell_events(spoc_subscription happened) {
  uint64_t fills = 0, evictions = 0, dropped = 0;
  spoc_event event = {.struct_size = sizeof event};
  spoc_status status;
  while ((status = spoc_subscription_next(happened, 0, &event)) == SPOC_OK) {
    fills += event.kind == SPOC_EVENT_FILL_DONE;
    evictions += event.kind == SPOC_EVENT_EVICTED;
  }
  if (status != SPOC_ERROR_TIMED_OUT) {
    CHECK(status);
  }
  CHECK(spoc_subscription_dropped(happened, &dropped));
  printf("events %" PRIu64 " fills, %" PRIu64 " evictions, %" PRIu64 " dropped\n", fills, evictions, dropped);
  CHECK(spoc_subscription_close(happened));
}

/* What an engine writes down as it ends, and reads as it starts again: the groups that were hot. */
static void warm_from_profile(spoc_cache cache, uint32_t number) {
  size_t bytes = 0;
  CHECK(spoc_cache_profile(cache, number, NULL, 0, &bytes));
  char *profile = malloc(bytes);
  if (profile == NULL) {
    fprintf(stderr, "stream: out of memory\n");
    exit(1);
  }
  CHECK(spoc_cache_profile(cache, number, profile, bytes, &bytes));
  uint32_t begun = 0;
  CHECK(spoc_cache_warm(cache, number, profile, &begun));
  printf("profile of %zu bytes, %" PRIu32 " groups read ahead\n", bytes, begun);
  free(profile);
}

/* Loads everything and compares. */
static uint64_t compare_with_load(spoc_pump pump, spoc_model model, const uint64_t *digests) {
  uint64_t copied = 0;
  spoc_load_options options = {.struct_size = sizeof options, .progress = progress, .user = &copied};
  spoc_loaded loaded;
  CHECK(spoc_load(pump, model, &options, &loaded));
  spoc_loaded_info info = {.struct_size = sizeof info};
  CHECK(spoc_loaded_describe(loaded, &info));
  if (copied != info.bytes) {
    fprintf(stderr, "stream: progress ended at %" PRIu64 " of %" PRIu64 " bytes\n", copied, info.bytes);
    exit(1);
  }
  CHECK(spoc_loaded_verify(loaded, model));
  for (uint32_t tensor = 0; tensor < info.tensors; tensor++) {
    spoc_place place = {.struct_size = sizeof place};
    CHECK(spoc_loaded_tensor(loaded, tensor, &place));
    if (place.host != NULL && digest(DIGEST_BEGIN, place.host, place.bytes) != digests[tensor]) {
      fprintf(stderr, "stream: tensor %" PRIu32 " differs between the two ways\n", tensor);
      exit(1);
    }
  }
  CHECK(spoc_loaded_close(loaded));
  return info.bytes;
}

int main(int argc, char **argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: stream MODEL [BACKEND [SLOTS [IO]]]\n");
    return 2;
  }
  const char *backend = argc > 2 ? argv[2] : "native";
  uint32_t slots = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 3;
  uint32_t version = spoc_abi_version();
  if (version >> 16 != SPOC_ABI_MAJOR || (int32_t)(version & 0xffff) < SPOC_ABI_MINOR) {
    fprintf(stderr, "stream: the library speaks version %" PRIu32 ".%" PRIu32 "\n", version >> 16, version & 0xffff);
    return 1;
  }

  spoc_driver driver;
  CHECK(spoc_driver_open(backend, &driver));
  size_t devices = 0;
  CHECK(spoc_device_count(driver, &devices));
  for (size_t i = 0; i < devices; i++) {
    spoc_device_info info = {.struct_size = sizeof info};
    CHECK(spoc_device_describe(driver, i, &info));
    printf("device %s:%" PRIu32 " %s, %s\n", info.backend, info.index, info.uuid, info.name);
  }
  spoc_device device;
  CHECK(spoc_device_open(driver, backend, 0, &device));
  spoc_stream stream;
  CHECK(spoc_stream_create(device, 1, &stream));

  spoc_model model;
  CHECK(spoc_model_open(argv[1], NULL, &model));
  spoc_model_info info = {.struct_size = sizeof info};
  CHECK(spoc_model_describe(model, &info));
  printf("model %" PRIu32 " tensors in %" PRIu32 " groups, %" PRIu64 " bytes\n", info.tensors, info.groups,
         info.tensor_bytes);
  uint64_t *digests = calloc(info.tensors + 1, sizeof *digests);
  if (digests == NULL) {
    return 1;
  }

  spoc_pump pump;
  spoc_pump_options reading = {.struct_size = sizeof reading, .io = argc > 4 ? argv[4] : "auto"};
  CHECK(spoc_pump_open(device, &reading, &pump));
  /* Groups that leave their slots stay in pinned host memory, as far as that goes. */
  spoc_cache_options options = {.struct_size = sizeof options,
                                .slots = slots,
                                .slot_bytes = info.widest_group_bytes,
                                .tier_bytes = 2 * info.widest_group_bytes};
  spoc_cache cache;
  CHECK(spoc_cache_open(pump, &options, &cache));
  spoc_subscription happened;
  CHECK(spoc_cache_subscribe(cache, 4096, &happened));
  uint32_t number = 0;
  CHECK(spoc_cache_register(cache, model, &number));
  for (int round = 0; round < 3; round++) {
    stream_groups(cache, stream, model, number, digests);
  }
  spoc_stats stats = {.struct_size = sizeof stats};
  CHECK(spoc_cache_stats(cache, &stats));
  printf("streamed %" PRIu64 " groups through %" PRIu32 " slots: %" PRIu64 " hits, %" PRIu64 " misses, %" PRIu64
         " evictions\n",
         stats.requested, slots, stats.hits, stats.misses, stats.evictions);
  tell_events(happened);
  warm_from_profile(cache, number);
  printf("equal %" PRIu64 " bytes\n", compare_with_load(pump, model, digests));
  free(digests);

  /* Any order will do. */
  CHECK(spoc_cache_close(cache));
  CHECK(spoc_pump_close(pump));
  CHECK(spoc_model_close(model));
  CHECK(spoc_stream_close(stream));
  CHECK(spoc_device_close(device));
  CHECK(spoc_driver_close(driver));
  return 0;
}
