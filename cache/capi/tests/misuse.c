/* What a C program does wrong, call by call: each is answered with a code, and none with a crash. Run under valgrind
 * too (docs/c-api.md).
 *
 *   misuse MODEL [IO]
 */
#include "spoc_cache.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures = 0;

/* How files are read; NULL is the default. */
static const char *io = NULL;

#define EXPECT(wanted, call)                                                                                   \
  do {                                                                                                         \
    spoc_status found_ = (call);                                                                               \
    if (found_ != (wanted)) {                                                                                  \
      fprintf(stderr, "line %d: %s: expected %s, found %s: %s\n", __LINE__, #call, spoc_status_name(wanted),   \
              spoc_status_name(found_), spoc_error_message());                                                 \
      failures++;                                                                                              \
    }                                                                                                          \
  } while (0)
#define OK(call) EXPECT(SPOC_OK, call)

static void expect_message(int line, const char *part) {
  if (strstr(spoc_error_message(), part) == NULL || strchr(spoc_error_message(), '\n') != NULL) {
    fprintf(stderr, "line %d: expected a line with '%s', found '%s'\n", line, part, spoc_error_message());
    failures++;
  }
}
#define MESSAGE(part) expect_message(__LINE__, part)

/* Another thread: its errors are its own, and a handle may be closed under it. */
static spoc_lease shared_lease;
static void *wait_for_shared(void *unused) {
  (void)unused;
  if (spoc_error_message()[0] != '\0') {
    return "a new thread has a message";
  }
  spoc_status status = spoc_lease_wait(shared_lease, -1);
  int fine = status == SPOC_OK || status == SPOC_ERROR_RELEASED || status == SPOC_ERROR_BAD_HANDLE;
  return fine ? NULL : "waiting on a lease that is closed meanwhile";
}

static int32_t cancel_at_once(void *user, uint64_t copied, uint64_t bytes) {
  (void)copied;
  (void)bytes;
  ++*(int *)user;
  return 1;
}

static int released = 0;
static void release(void *user) { released += *(int *)user; }

static void handles(spoc_driver driver) {
  spoc_device none = {0}, invented = {0xdeadbeefcafe}, device, again;
  OK(spoc_device_open(driver, "native", 0, &device));
  OK(spoc_device_open(driver, "native", 0, &again));
  spoc_stream stream;
  EXPECT(SPOC_ERROR_BAD_HANDLE, spoc_stream_create(none, 0, &stream));
  MESSAGE("found none");
  EXPECT(SPOC_ERROR_BAD_HANDLE, spoc_stream_create(invented, 0, &stream));
  MESSAGE("no such handle");
  spoc_stream mistaken = {device.id};
  EXPECT(SPOC_ERROR_BAD_HANDLE, spoc_stream_synchronize(mistaken));
  MESSAGE("it is a spoc_device");
  OK(spoc_device_close(device));
  EXPECT(SPOC_ERROR_BAD_HANDLE, spoc_device_close(device));
  MESSAGE("it was closed");
  EXPECT(SPOC_ERROR_BAD_HANDLE, spoc_stream_create(device, 0, &stream));
  OK(spoc_stream_create(again, 0, &stream));
  OK(spoc_device_close(again));
  OK(spoc_stream_synchronize(stream)); /* what is needed stays alive */
  OK(spoc_stream_close(stream));
  EXPECT(SPOC_ERROR_BAD_HANDLE, spoc_stream_close(stream));
}

static void arguments(spoc_driver driver, spoc_device device, const char *path) {
  spoc_model model;
  spoc_driver ignored;
  EXPECT(SPOC_ERROR_INVALID_ARGUMENT, spoc_driver_open("native", NULL));
  MESSAGE("driver: expected a pointer, found NULL");
  EXPECT(SPOC_ERROR_INVALID_ARGUMENT, spoc_driver_open("natives", &ignored));
  MESSAGE("opencl");
  EXPECT(SPOC_ERROR_INVALID_ARGUMENT, spoc_driver_open("\xff\xfe", &ignored));
  EXPECT(SPOC_ERROR_INVALID_ARGUMENT, spoc_model_open(NULL, NULL, &model));
  EXPECT(SPOC_ERROR_NOT_FOUND, spoc_model_open("/no/such/model", NULL, &model));
  MESSAGE("/no/such/model");
  spoc_device found;
  EXPECT(SPOC_ERROR_NO_DEVICE, spoc_device_open(driver, "native", 7, &found));
  EXPECT(SPOC_ERROR_NO_DEVICE, spoc_device_open(driver, "cuda", 0, &found));
  EXPECT(SPOC_ERROR_INVALID_ARGUMENT, spoc_device_open_uuid(driver, "native", "xyz", &found));
  spoc_device_info info = {0};
  EXPECT(SPOC_ERROR_INVALID_ARGUMENT, spoc_device_describe(driver, 0, &info));
  MESSAGE("spoc_device_info.struct_size: expected at least");
  info.struct_size = sizeof info;
  EXPECT(SPOC_ERROR_INVALID_ARGUMENT, spoc_device_describe(driver, 99, &info));
  OK(spoc_device_describe(driver, 0, &info));
  OK(spoc_device_open_uuid(driver, "native", info.uuid, &found));
  OK(spoc_device_close(found));
  const char *reason = "";
  OK(spoc_driver_missing(driver, "native", &reason));
  if (reason != NULL) {
    failures++;
  }

  /* A caller of tomorrow: what it asks for beyond this library is refused, zeros are not. */
  struct {
    spoc_pump_options known;
    uint64_t unknown;
  } tomorrow = {.known = {.struct_size = sizeof tomorrow, .staging_bytes = 1 << 20, .io = io}};
  spoc_pump pump;
  OK(spoc_pump_open(device, &tomorrow.known, &pump));
  OK(spoc_pump_close(pump));
  tomorrow.unknown = 1;
  EXPECT(SPOC_ERROR_INVALID_ARGUMENT, spoc_pump_open(device, &tomorrow.known, &pump));
  MESSAGE("does not know");
  spoc_pump_options small = {.struct_size = sizeof small, .staging_bytes = 100};
  EXPECT(SPOC_ERROR_STAGING_TOO_SMALL, spoc_pump_open(device, &small, &pump));
  small.staging_bytes = UINT64_MAX;
  EXPECT(SPOC_ERROR_STAGING_TOO_SMALL, spoc_pump_open(device, &small, &pump));
  spoc_pump_options way = {.struct_size = sizeof way, .io = "by carrier pigeon"};
  EXPECT(SPOC_ERROR_INVALID_ARGUMENT, spoc_pump_open(device, &way, &pump));

  const char *bad[] = {"a.{layer}.{layer}"};
  spoc_model_options patterns = {.struct_size = sizeof patterns, .group_patterns = bad, .group_pattern_count = 1};
  EXPECT(SPOC_ERROR_BAD_PATTERN, spoc_model_open(path, &patterns, &model));
  patterns.group_patterns = NULL;
  EXPECT(SPOC_ERROR_INVALID_ARGUMENT, spoc_model_open(path, &patterns, &model));
}

static void lent(spoc_driver driver, spoc_device device) {
  /* The CPU has no contexts to lend: refused by name, and what was lent is given back each time. */
  int one = 1;
  spoc_foreign foreign = {.struct_size = sizeof foreign, .words = {1, 2}, .release = release, .user = &one};
  spoc_device adopted;
  spoc_stream stream;
  EXPECT(SPOC_ERROR_UNSUPPORTED, spoc_device_adopt(driver, "native", &foreign, &adopted));
  MESSAGE("native does not support");
  EXPECT(SPOC_ERROR_UNSUPPORTED, spoc_stream_adopt(device, &foreign, 0, &stream));
  EXPECT(SPOC_ERROR_BAD_HANDLE, spoc_stream_adopt((spoc_device){0}, &foreign, 0, &stream));
  if (released != 3) {
    fprintf(stderr, "lent 3 times, given back %d times\n", released);
    failures++;
  }
}

static void models(spoc_model model) {
  spoc_model_info info = {.struct_size = sizeof info};
  OK(spoc_model_describe(model, &info));
  spoc_tensor tensor = {.struct_size = sizeof tensor};
  EXPECT(SPOC_ERROR_INVALID_ARGUMENT, spoc_model_tensor(model, info.tensors, &tensor));
  uint32_t number = 77;
  for (uint32_t i = 0; i < info.tensors; i++) {
    OK(spoc_model_tensor(model, i, &tensor));
    OK(spoc_model_find_tensor(model, tensor.name, &number));
    if (number != i || tensor.rank != 1 || tensor.shape[0] != tensor.bytes || strcmp(tensor.dtype, "U8") != 0) {
      failures++;
    }
  }
  EXPECT(SPOC_ERROR_NO_TENSOR, spoc_model_find_tensor(model, "nobody", &number));
  EXPECT(SPOC_ERROR_NO_SUCH_GROUP, spoc_model_find_group(model, "nobody", &number));
  OK(spoc_model_find_group(model, "lm_head", &number));
  spoc_group group = {.struct_size = sizeof group};
  EXPECT(SPOC_ERROR_NO_SUCH_GROUP, spoc_model_group(model, info.groups, &group));
  OK(spoc_model_group(model, number, &group));
  if (group.layer != -1 || group.tensors != 1) {
    failures++;
  }
  spoc_member member = {.struct_size = sizeof member};
  EXPECT(SPOC_ERROR_INVALID_ARGUMENT, spoc_model_member(model, number, 1, &member));
  EXPECT(SPOC_ERROR_NO_SUCH_GROUP, spoc_model_member(model, 4000000000u, 0, &member));
}

static void loads(spoc_pump pump, spoc_model model) {
  int calls = 0;
  spoc_loaded loaded;
  spoc_load_options options = {.struct_size = sizeof options, .progress = cancel_at_once, .user = &calls};
  EXPECT(SPOC_ERROR_CANCELLED, spoc_load(pump, model, &options, &loaded));
  if (calls == 0) {
    failures++;
  }
  spoc_load_options early = {.struct_size = sizeof early};
  OK(spoc_cancel_create(&early.cancel));
  OK(spoc_cancel_request(early.cancel));
  EXPECT(SPOC_ERROR_CANCELLED, spoc_load(pump, model, &early, &loaded));
  OK(spoc_cancel_close(early.cancel));
  EXPECT(SPOC_ERROR_BAD_HANDLE, spoc_load(pump, model, &early, &loaded));
  spoc_load_options some = {.struct_size = sizeof some, .tensors = "no*such"};
  EXPECT(SPOC_ERROR_NO_TENSOR, spoc_load(pump, model, &some, &loaded));
  some.tensors = "[";
  EXPECT(SPOC_ERROR_BAD_PATTERN, spoc_load(pump, model, &some, &loaded));
  some.tensors = "lm_head*";
  OK(spoc_load(pump, model, &some, &loaded));
  uint32_t head = 0;
  OK(spoc_model_find_tensor(model, "lm_head.weight", &head));
  spoc_place place = {.struct_size = sizeof place};
  OK(spoc_loaded_tensor(loaded, head, &place));
  EXPECT(SPOC_ERROR_NO_TENSOR, spoc_loaded_tensor(loaded, head + 1, &place));
  OK(spoc_loaded_verify(loaded, model));
  OK(spoc_loaded_close(loaded));
  EXPECT(SPOC_ERROR_BAD_HANDLE, spoc_loaded_verify(loaded, model));
}

/* Claims, waves, pins, hints, sizes: on two slots, one of which the shared lease holds. */
static void wishes(spoc_cache cache, spoc_key *keys, spoc_stream stream) {
  spoc_key missing[3];
  size_t missing_count = 9, positions[3], count = 9;
  spoc_lease claimed;
  EXPECT(SPOC_ERROR_INVALID_ARGUMENT, spoc_claim(cache, keys, 3, stream, 0, NULL, &missing_count, &claimed));
  OK(spoc_claim(cache, keys, 3, stream, 0, missing, &missing_count, &claimed));
  spoc_place place = {.struct_size = sizeof place};
  OK(spoc_lease_tensor(claimed, 2 - missing_count, 0, &place));
  EXPECT(SPOC_ERROR_INVALID_ARGUMENT, spoc_lease_tensor(claimed, 3 - missing_count, 0, &place));
  if (missing_count == 0 || missing_count > 2 || missing[0].group > 1) {
    failures++;
  }
  OK(spoc_lease_release(claimed, NULL, 0));

  OK(spoc_next_wave(cache, keys, 3, positions, &count));
  if (count != 2 || positions[0] >= positions[1] || positions[1] != 2) {
    failures++;
  }
  OK(spoc_next_wave(cache, NULL, 0, NULL, &count));
  if (count != 0) {
    failures++;
  }

  EXPECT(SPOC_ERROR_TOO_WIDE, spoc_pin(cache, keys, 3));
  OK(spoc_pin(cache, &keys[2], 1));
  OK(spoc_retain(cache, keys, 1, 50));
  OK(spoc_unpin(cache, &keys[2], 1));
  spoc_hinted hinted = {9, 9, 9, 9};
  OK(spoc_hint(cache, keys, 3, UINT64_MAX, &hinted));
  if (hinted.there + hinted.begun + hinted.waiting + hinted.refused != 3) {
    failures++;
  }
  OK(spoc_hint(cache, keys, 1, 0, NULL));
  uint32_t ended = 9, slots = 9;
  OK(spoc_cancel_reads(cache, keys, 2, &ended));
  spoc_key stale = keys[0];
  stale.generation += 1;
  EXPECT(SPOC_ERROR_STALE_KEY, spoc_hint(cache, &stale, 1, 10, NULL));
  EXPECT(SPOC_ERROR_STALE_KEY, spoc_acquire(cache, &stale, 1, stream, &claimed));
  stale.group = 4000000000u;
  stale.generation -= 1;
  EXPECT(SPOC_ERROR_NO_SUCH_GROUP, spoc_pin(cache, &stale, 1));
  EXPECT(SPOC_ERROR_TOO_MANY_SLOTS, spoc_cache_resize(cache, 3, 0, &slots));
  OK(spoc_cache_resize(cache, 2, 0, &slots));
  uint64_t given = 9;
  OK(spoc_cache_give_back(cache, 1, 10, &given)); /* a lease is out, so nothing can be emptied in time */
  if (ended > 2 || slots != 2 || given != 0) {
    failures++;
  }
  OK(spoc_cache_keep_headroom(cache, 0, &given)); /* nothing was promised to others */
  EXPECT(SPOC_ERROR_INVALID_ARGUMENT, spoc_cache_keep_headroom(cache, 0, NULL));
  if (given != 0) {
    failures++;
  }
  spoc_stats stats = {.struct_size = sizeof stats};
  OK(spoc_cache_stats(cache, &stats));
  if (stats.requested != stats.hits + stats.misses || stats.leases != 1) {
    failures++;
  }
}

/* Queues of events, profiles, slots of several widths, the host tier. */
static void watching(spoc_device device, spoc_pump pump, spoc_model model) {
  spoc_model_info info = {.struct_size = sizeof info};
  OK(spoc_model_describe(model, &info));
  spoc_stream stream;
  OK(spoc_stream_create(device, 1, &stream));
  spoc_slot_class classes[2] = {{4096, 4}, {info.widest_group_bytes, 2}};
  spoc_cache_options options = {.struct_size = sizeof options, .classes = classes, .class_count = 2};
  spoc_cache cache;
  classes[0].slots = 0;
  EXPECT(SPOC_ERROR_INVALID_ARGUMENT, spoc_cache_open(pump, &options, &cache));
  classes[0].slots = 4;
  options.classes = NULL;
  EXPECT(SPOC_ERROR_INVALID_ARGUMENT, spoc_cache_open(pump, &options, &cache));
  MESSAGE("spoc_cache_options.classes");
  options.classes = classes;
  options.tier_bytes = UINT64_MAX;
  EXPECT(SPOC_ERROR_STAGING_TOO_SMALL, spoc_cache_open(pump, &options, &cache));
  options.tier_bytes = 4 * info.widest_group_bytes;
  OK(spoc_cache_open(pump, &options, &cache));
  uint32_t number = 9, begun = 9;
  OK(spoc_cache_register(cache, model, &number));

  spoc_subscription queue;
  EXPECT(SPOC_ERROR_INVALID_ARGUMENT, spoc_cache_subscribe(cache, 0, &queue));
  EXPECT(SPOC_ERROR_INVALID_ARGUMENT, spoc_cache_subscribe(cache, SIZE_MAX, &queue));
  EXPECT(SPOC_ERROR_INVALID_ARGUMENT, spoc_cache_subscribe(cache, 1, NULL));
  OK(spoc_cache_subscribe(cache, 1, &queue));
  spoc_event event = {.struct_size = sizeof event};
  EXPECT(SPOC_ERROR_TIMED_OUT, spoc_subscription_next(queue, 0, &event));
  spoc_key key;
  OK(spoc_cache_key(cache, number, 0, &key));
  spoc_lease lease;
  OK(spoc_wait_acquire(cache, &key, 1, stream, -1, &lease));
  OK(spoc_subscription_next(queue, -1, &event));
  if (event.kind != SPOC_EVENT_FILL_STARTED || event.cause != SPOC_CAUSE_DEMAND || event.key.group != 0) {
    failures++;
  }
  /* Its end did not fit the queue of one, if it came before the first was taken. */
  uint64_t dropped = 9;
  OK(spoc_subscription_dropped(queue, &dropped));
  if (dropped > 1) {
    failures++;
  }
  OK(spoc_lease_release(lease, NULL, 0));

  char text[4096];
  size_t bytes = 0;
  OK(spoc_cache_profile(cache, number, NULL, 0, &bytes));
  text[0] = 'x';
  OK(spoc_cache_profile(cache, number, text, bytes - 1, &bytes));
  if (text[0] != 'x' || bytes > sizeof text) {
    failures++;
  }
  OK(spoc_cache_profile(cache, number, text, sizeof text, &bytes));
  if (strlen(text) + 1 != bytes) {
    failures++;
  }
  OK(spoc_cache_warm(cache, number, text, &begun));
  OK(spoc_cache_warm(cache, number, text, NULL));
  if (begun != 0) { /* what was leased is there */
    failures++;
  }
  EXPECT(SPOC_ERROR_INVALID_ARGUMENT, spoc_cache_warm(cache, number, "no profile", &begun));
  EXPECT(SPOC_ERROR_INVALID_ARGUMENT, spoc_cache_warm(cache, number, NULL, &begun));

  uint64_t given = 9;
  OK(spoc_cache_give_back_tier(cache, UINT64_MAX, &given));
  OK(spoc_cache_give_back_tier(cache, UINT64_MAX, &given));
  if (given != 0) {
    failures++;
  }
  OK(spoc_cache_close(cache));
  spoc_status ended;
  while ((ended = spoc_subscription_next(queue, 10000, &event)) == SPOC_OK) {
  }
  EXPECT(SPOC_ERROR_CLOSED, ended);
  OK(spoc_subscription_close(queue));
  EXPECT(SPOC_ERROR_BAD_HANDLE, spoc_subscription_next(queue, 0, &event));
  OK(spoc_stream_close(stream));
}

static void leases(spoc_device device, spoc_pump pump, spoc_model model) {
  spoc_model_info info = {.struct_size = sizeof info};
  OK(spoc_model_describe(model, &info));
  spoc_stream stream, other;
  OK(spoc_stream_create(device, 1, &stream));
  OK(spoc_stream_default(device, &other));
  spoc_cache cache;
  spoc_cache_options options = {.struct_size = sizeof options, .slots = 2};
  EXPECT(SPOC_ERROR_INVALID_ARGUMENT, spoc_cache_open(pump, &options, &cache));
  options.slot_bytes = UINT64_MAX / 4;
  EXPECT(SPOC_ERROR_WIDER_THAN_SEGMENT, spoc_cache_open(pump, &options, &cache));
  options.slot_bytes = info.widest_group_bytes;
  options.policy = "fifo of last year";
  EXPECT(SPOC_ERROR_INVALID_ARGUMENT, spoc_cache_open(pump, &options, &cache));
  options.policy = "lru";
  OK(spoc_cache_open(pump, &options, &cache));
  uint32_t number = 0;
  OK(spoc_cache_register(cache, model, &number));
  spoc_key keys[3];
  for (uint32_t i = 0; i < 3; i++) {
    OK(spoc_cache_key(cache, number, i, &keys[i]));
  }
  EXPECT(SPOC_ERROR_NO_SUCH_GROUP, spoc_cache_key(cache, number, info.groups, &keys[0]));
  EXPECT(SPOC_ERROR_NO_SUCH_GROUP, spoc_cache_key(cache, 99, 0, &keys[0]));

  spoc_lease lease, second;
  EXPECT(SPOC_ERROR_TOO_WIDE, spoc_acquire(cache, keys, 3, stream, &lease));
  EXPECT(SPOC_ERROR_INVALID_ARGUMENT, spoc_acquire(cache, NULL, 1, stream, &lease));
  EXPECT(SPOC_ERROR_BAD_HANDLE, spoc_acquire(cache, keys, 1, (spoc_stream){cache.id}, &lease));
  OK(spoc_acquire(cache, keys, 2, stream, &lease));
  OK(spoc_lease_wait(lease, -1));
  uint32_t ready = 0, slot = 99;
  OK(spoc_lease_try(lease, &ready));
  spoc_place place = {.struct_size = sizeof place};
  spoc_segment segment = {.struct_size = sizeof segment};
  size_t segments = 0;
  OK(spoc_lease_slot(lease, 1, &slot, &place));
  OK(spoc_cache_segment_count(cache, &segments));
  OK(spoc_cache_segment(cache, 0, &segment));
  uint64_t addresses[2];
  OK(spoc_lease_addresses(lease, addresses, 2));
  uint64_t computed = segment.address + (slot - segment.first_slot) * segment.stride_bytes;
  if (ready != 1 || segments != 1 || place.address != computed || addresses[1] != place.address) {
    failures++;
  }
  EXPECT(SPOC_ERROR_INVALID_ARGUMENT, spoc_lease_slot(lease, 2, &slot, &place));
  EXPECT(SPOC_ERROR_INVALID_ARGUMENT, spoc_lease_addresses(lease, addresses, 1));
  EXPECT(SPOC_ERROR_INVALID_ARGUMENT, spoc_lease_tensor(lease, 0, 99, &place));
  EXPECT(SPOC_ERROR_INVALID_ARGUMENT, spoc_cache_segment(cache, 1, &segment));
  EXPECT(SPOC_ERROR_IN_USE, spoc_cache_unregister(cache, number));
  unsigned char byte = 0;
  OK(spoc_lease_tensor(lease, 0, 0, &place));
  EXPECT(SPOC_ERROR_OUT_OF_BOUNDS, spoc_lease_read(lease, 0, 0, place.bytes, &byte, 1));
  EXPECT(SPOC_ERROR_OUT_OF_BOUNDS, spoc_lease_read(lease, 0, 0, UINT64_MAX, &byte, 1));
  OK(spoc_stream_synchronize(stream));
  OK(spoc_lease_read(lease, 0, 0, place.bytes - 1, &byte, 1));
  if (byte != ((unsigned char *)place.host)[place.bytes - 1]) {
    failures++;
  }

  /* No slot is left: the wish waits, times out, is asked again, and is abandoned. */
  OK(spoc_acquire(cache, &keys[2], 1, stream, &second));
  OK(spoc_lease_try(second, &ready));
  EXPECT(SPOC_ERROR_TIMED_OUT, spoc_lease_wait(second, 20));
  EXPECT(SPOC_ERROR_NOT_READY, spoc_lease_slot(second, 0, &slot, &place));
  EXPECT(SPOC_ERROR_TIMED_OUT, spoc_wait_acquire(cache, &keys[2], 1, stream, 20, &shared_lease));
  if (ready != 0) {
    failures++;
  }
  OK(spoc_lease_release(second, NULL, 0));
  spoc_stream twice[] = {stream, other, stream};
  EXPECT(SPOC_ERROR_BAD_HANDLE, spoc_lease_release(lease, (spoc_stream[]){{5}}, 1));
  OK(spoc_lease_release(lease, twice, 3));
  EXPECT(SPOC_ERROR_BAD_HANDLE, spoc_lease_release(lease, NULL, 0));
  EXPECT(SPOC_ERROR_BAD_HANDLE, spoc_lease_slot(lease, 0, &slot, &place));

  /* One thread waits for a lease that another one ends. */
  OK(spoc_wait_acquire(cache, keys, 2, stream, -1, &lease));
  OK(spoc_acquire(cache, &keys[2], 1, stream, &shared_lease));
  pthread_t thread;
  if (pthread_create(&thread, NULL, wait_for_shared, NULL) != 0) {
    exit(1);
  }
  OK(spoc_lease_release(lease, &stream, 1)); /* not held up by the thread that waits on the same stream */
  void *complaint = NULL;
  pthread_join(thread, &complaint);
  if (complaint != NULL) {
    fprintf(stderr, "%s\n", (const char *)complaint);
    failures++;
  }

  wishes(cache, keys, stream);

  /* Closed in the wrong order, with a lease out. */
  OK(spoc_cache_close(cache));
  EXPECT(SPOC_ERROR_BAD_HANDLE, spoc_acquire(cache, keys, 1, stream, &lease));
  OK(spoc_stream_close(stream));
  OK(spoc_lease_slot(shared_lease, 0, &slot, &place));
  OK(spoc_lease_release(shared_lease, &other, 1));
  OK(spoc_stream_close(other));
}

int main(int argc, char **argv) {
  if (argc < 2 || strcmp(spoc_status_name(-5), "unknown") != 0 ||
      strcmp(spoc_status_name(SPOC_ERROR_TOO_WIDE), "too_wide") != 0) {
    return 2;
  }
  io = argc > 2 ? argv[2] : NULL;
  spoc_driver driver;
  spoc_device device;
  spoc_model model;
  spoc_pump pump;
  OK(spoc_driver_open("native", &driver));
  OK(spoc_device_open(driver, "native", 0, &device));
  OK(spoc_model_open(argv[1], NULL, &model));
  spoc_pump_options options = {.struct_size = sizeof options, .staging_bytes = 1 << 17};
  options.io = io;
  OK(spoc_pump_open(device, &options, &pump));
  handles(driver);
  arguments(driver, device, argv[1]);
  lent(driver, device);
  models(model);
  loads(pump, model);
  leases(device, pump, model);
  watching(device, pump, model);
  OK(spoc_pump_close(pump));
  OK(spoc_model_close(model));
  OK(spoc_device_close(device));
  OK(spoc_driver_close(driver));
  EXPECT(SPOC_ERROR_BAD_HANDLE, spoc_driver_close(driver));
  if (failures == 0) {
    printf("no failures\n");
  }
  return failures != 0;
}
