// A small storage driver: its volumes are entries of the host's `state`, and hold no data.
//
// Every call runs in a fresh instance, so nothing is freed here: memory goes with the call. What is returned is allocated all
// the same, because the generated code frees it. `abort` ends the call as a trap, so what can fail is answered on purpose.

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sample.h"

// The generated names carry their interface; these are the ones this file writes often.
typedef sample_string_t text_t;
typedef cofferdam_storage_types_storage_error_t failure_t;
typedef cofferdam_storage_types_volume_t volume_t;
typedef cofferdam_storage_types_capacity_range_t range_t;
typedef cofferdam_storage_types_volume_capability_t capability_t;
#define KIND(name) COFFERDAM_STORAGE_TYPES_ERROR_KIND_##name

static const char NAME[] = "c.samples.cofferdam.dev";
static const char VERSION[] = "0.1.0";
static const char PREFIX[] = "c-";
static const uint64_t DEFAULT_SIZE = UINT64_C(1) << 30;
static const uint64_t MAX_SIZE = UINT64_C(1) << 50;
// CSI's limit for names and ids, in bytes.
static const size_t MAX_TEXT = 128;
// How often a decision is made anew after a foreign write of the same volume.
static const int ATTEMPTS = 64;

// Texts

static void append(text_t *text, const void *bytes, size_t len) {
  if (len == 0) return;
  uint8_t *grown = realloc(text->ptr, text->len + len);
  if (grown == NULL) abort();
  memcpy(grown + text->len, bytes, len);
  text->ptr = grown;
  text->len += len;
}

static void append_literal(text_t *text, const char *literal) { append(text, literal, strlen(literal)); }

static text_t text_of(const char *literal) {
  text_t text = {0};
  append_literal(&text, literal);
  return text;
}

static bool equal(text_t a, text_t b) { return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0); }

// A text in quotes, in which no quote, newline or NUL is left: whatever follows it cannot be mistaken for a part of it.
static void append_quoted(text_t *text, text_t raw) {
  static const char HEX[] = "0123456789abcdef";
  append_literal(text, "\"");
  for (size_t i = 0; i < raw.len; i++) {
    uint8_t byte = raw.ptr[i];
    if (byte < 0x20 || byte == '"' || byte == '\\') {
      const char escaped[] = {'\\', 'x', HEX[byte >> 4], HEX[byte & 15]};
      append(text, escaped, sizeof escaped);
    } else {
      append(text, &byte, 1);
    }
  }
  append_literal(text, "\"");
}

static void append_optional(text_t *text, sample_option_string_t raw) {
  if (raw.is_some) append_quoted(text, raw.val);
  else append_literal(text, "none");
}

// Failures: every function that can fail returns false and has then filled the failure, as the exports themselves do.

__attribute__((format(printf, 3, 4))) static bool refuse(failure_t *failure, uint8_t kind, const char *format, ...) {
  char message[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  *failure = (failure_t){
      .kind = kind,
      .message = text_of(message),
      .finality = COFFERDAM_STORAGE_TYPES_FINALITY_FINAL,
  };
  return false;
}

// A text that others chose, for a message: in quotes, and cut where a character ends, because messages are UTF-8.
static const char *shown(text_t raw) {
  if (raw.len > MAX_TEXT) {
    raw.len = MAX_TEXT;
    while (raw.len > 0 && (raw.ptr[raw.len] & 0xc0) == 0x80) raw.len--;
  }
  text_t quoted = {0};
  append_quoted(&quoted, raw);
  append(&quoted, "", 1);
  return (const char *)quoted.ptr;
}

// The request

static bool has_control(text_t text) {
  for (size_t i = 0; i < text.len; i++) {
    uint8_t byte = text.ptr[i];
    // U+0080 to U+009F are the bytes c2 80 to c2 9f.
    if (byte < 0x20 || byte == 0x7f) return true;
    if (byte == 0xc2 && i + 1 < text.len && text.ptr[i + 1] < 0xa0) return true;
  }
  return false;
}

// FNV-1a with 128 bits, in hexadecimal. Two names may share a digest: the volume keeps its name, so a stranger is refused.
static void append_digest(text_t *text, text_t name) {
  const unsigned __int128 prime = ((unsigned __int128)0x0000000001000000 << 64) | 0x000000000000013b;
  unsigned __int128 hash = ((unsigned __int128)0x6c62272e07bb0142 << 64) | 0x62b821756295c58d;
  for (size_t i = 0; i < name.len; i++) hash = (hash ^ name.ptr[i]) * prime;
  char digits[33];
  snprintf(digits, sizeof digits, "%016" PRIx64 "%016" PRIx64, (uint64_t)(hash >> 64), (uint64_t)hash);
  append_literal(text, digits);
}

// The handle of a name: readable while that fits, the same for the same name.
static bool handle_of(text_t name, text_t *handle, failure_t *failure) {
  if (name.len == 0 || name.len > MAX_TEXT || has_control(name)) {
    return refuse(failure, KIND(INVALID_ARGUMENT),
                  "the volume name has %zu bytes; expected 1 to %zu without control characters", name.len, MAX_TEXT);
  }
  *handle = text_of(PREFIX);
  if (handle->len + name.len <= MAX_TEXT) {
    append(handle, name.ptr, name.len);
  } else {
    append_literal(handle, "fnv-");
    append_digest(handle, name);
  }
  return true;
}

static bool no_parameters(const char *what, cofferdam_storage_types_key_values_t pairs, failure_t *failure) {
  if (pairs.len == 0) return true;
  return refuse(failure, KIND(INVALID_ARGUMENT), "unknown %s %s: this driver has none", what, shown(pairs.ptr[0].f0));
}

static const char *const MODES[] = {
    [COFFERDAM_STORAGE_TYPES_ACCESS_MODE_SINGLE_NODE_WRITER] = "single-node-writer",
    [COFFERDAM_STORAGE_TYPES_ACCESS_MODE_SINGLE_NODE_READER_ONLY] = "single-node-reader-only",
    [COFFERDAM_STORAGE_TYPES_ACCESS_MODE_MULTI_NODE_READER_ONLY] = "multi-node-reader-only",
    [COFFERDAM_STORAGE_TYPES_ACCESS_MODE_MULTI_NODE_SINGLE_WRITER] = "multi-node-single-writer",
    [COFFERDAM_STORAGE_TYPES_ACCESS_MODE_MULTI_NODE_MULTI_WRITER] = "multi-node-multi-writer",
    [COFFERDAM_STORAGE_TYPES_ACCESS_MODE_SINGLE_NODE_SINGLE_WRITER] = "single-node-single-writer",
    [COFFERDAM_STORAGE_TYPES_ACCESS_MODE_SINGLE_NODE_MULTI_WRITER] = "single-node-multi-writer",
};

// A way of use as a line.
static text_t use_of(const capability_t *capability) {
  text_t use = text_of(MODES[capability->mode]);
  if (capability->access.tag == COFFERDAM_STORAGE_TYPES_ACCESS_TYPE_BLOCK) {
    append_literal(&use, " block\n");
    return use;
  }
  const cofferdam_storage_types_filesystem_access_t *access = &capability->access.val.filesystem;
  append_literal(&use, " filesystem ");
  append_optional(&use, access->fs_type);
  append_literal(&use, " [");
  for (size_t i = 0; i < access->mount_flags.len; i++) append_quoted(&use, access->mount_flags.ptr[i]);
  append_literal(&use, "] ");
  append_optional(&use, access->mount_group);
  append_literal(&use, "\n");
  return use;
}

static int by_bytes(const void *left, const void *right) {
  const text_t *a = left, *b = right;
  int order = memcmp(a->ptr, b->ptr, a->len < b->len ? a->len : b->len);
  return order != 0 ? order : (a->len > b->len) - (a->len < b->len);
}

// Every way of use as a line, sorted, each once: two requests with the same ways have the same lines.
static bool uses_of(const capability_t *capabilities, size_t len, text_t *uses, failure_t *failure) {
  if (len == 0) {
    return refuse(failure, KIND(INVALID_ARGUMENT), "no volume capability was given; expected at least one");
  }
  text_t *lines = calloc(len, sizeof *lines);
  if (lines == NULL) abort();
  for (size_t i = 0; i < len; i++) lines[i] = use_of(&capabilities[i]);
  qsort(lines, len, sizeof *lines, by_bytes);
  *uses = (text_t){0};
  for (size_t i = 0; i < len; i++) {
    if (i == 0 || !equal(lines[i], lines[i - 1])) append(uses, lines[i].ptr, lines[i].len);
  }
  return true;
}

static bool choose_size(range_t range, uint64_t *size, failure_t *failure) {
  uint64_t preferred = range.limit_bytes.is_some && range.limit_bytes.val < DEFAULT_SIZE ? range.limit_bytes.val : DEFAULT_SIZE;
  *size = range.required_bytes.is_some ? range.required_bytes.val : preferred;
  if (*size == 0 || (range.limit_bytes.is_some && range.limit_bytes.val == 0)) {
    return refuse(failure, KIND(OUT_OF_RANGE), "0 bytes were asked for; a volume has at least 1");
  }
  if (range.limit_bytes.is_some && *size > range.limit_bytes.val) {
    return refuse(failure, KIND(OUT_OF_RANGE), "at least %" PRIu64 " and at most %" PRIu64 " bytes were asked for: no size is both",
                  *size, range.limit_bytes.val);
  }
  if (*size > MAX_SIZE) {
    return refuse(failure, KIND(OUT_OF_RANGE), "%" PRIu64 " bytes were asked for; a volume has at most 1 PiB", *size);
  }
  return true;
}

static bool fits(uint64_t size, range_t range) {
  return (!range.required_bytes.is_some || size >= range.required_bytes.val) &&
         (!range.limit_bytes.is_some || size <= range.limit_bytes.val);
}

// Records: a line with the size, a line with the name, which has no control characters, and the lines of the ways of use.

typedef struct {
  uint64_t size;
  text_t name;
  text_t uses;
  uint64_t version;
} record_t;

static text_t encode(uint64_t size, text_t name, text_t uses) {
  char line[32];
  snprintf(line, sizeof line, "%" PRIu64 "\n", size);
  text_t value = text_of(line);
  append(&value, name.ptr, name.len);
  append_literal(&value, "\n");
  append(&value, uses.ptr, uses.len);
  return value;
}

// Takes a line off a text, without its newline.
static bool take_line(text_t *text, text_t *line) {
  uint8_t *end = text->len == 0 ? NULL : memchr(text->ptr, '\n', text->len);
  if (end == NULL) return false;
  *line = (text_t){text->ptr, (size_t)(end - text->ptr)};
  *text = (text_t){end + 1, text->len - line->len - 1};
  return true;
}

static bool decode(text_t value, record_t *record) {
  text_t digits;
  if (!take_line(&value, &digits) || !take_line(&value, &record->name) || digits.len == 0) return false;
  record->uses = value;
  record->size = 0;
  for (size_t i = 0; i < digits.len; i++) {
    if (digits.ptr[i] < '0' || digits.ptr[i] > '9' || record->size > MAX_SIZE) return false;
    record->size = record->size * 10 + (uint64_t)(digits.ptr[i] - '0');
  }
  return true;
}

// The state

// A failed read or commit did nothing, so neither did the call.
static bool refuse_state(failure_t *failure, const cofferdam_storage_state_state_error_t *error) {
  switch (error->tag) {
    case COFFERDAM_STORAGE_STATE_STATE_ERROR_FULL:
      return refuse(failure, KIND(RESOURCE_EXHAUSTED), "the state would hold %" PRIu64 " bytes; its limit is %" PRIu64,
                    error->val.full.given, error->val.full.limit);
    case COFFERDAM_STORAGE_STATE_STATE_ERROR_UNAVAILABLE:
      return refuse(failure, KIND(UNAVAILABLE), "the state cannot be used: %s", shown(error->val.unavailable));
    default:
      return refuse(failure, KIND(INTERNAL), "the state refused the write: reason %d", error->tag);
  }
}

static text_t key_of(text_t handle) {
  text_t key = text_of("volume/");
  append(&key, handle.ptr, handle.len);
  return key;
}

// Looks a volume up. A handle longer than any of ours is nobody's, and may be longer than a key.
static bool find(text_t handle, bool *found, record_t *record, failure_t *failure) {
  *found = false;
  if (handle.len > MAX_TEXT) return true;
  text_t key = key_of(handle);
  cofferdam_storage_state_option_entry_t entry;
  cofferdam_storage_state_state_error_t error;
  if (!cofferdam_storage_state_get(&key, &entry, &error)) return refuse_state(failure, &error);
  if (!entry.is_some) return true;
  *found = true;
  record->version = entry.val.version;
  if (decode((text_t){entry.val.value.ptr, entry.val.value.len}, record)) return true;
  return refuse(failure, KIND(INTERNAL), "the state of the volume %s is not readable", shown(handle));
}

// Makes a change; `done` is false when another call was faster.
static bool commit(cofferdam_storage_state_change_t change, bool *done, failure_t *failure) {
  cofferdam_storage_state_list_change_t changes = {&change, 1};
  cofferdam_storage_state_version_t version;
  cofferdam_storage_state_state_error_t error;
  *done = cofferdam_storage_state_commit(&changes, &version, &error);
  return *done || error.tag == COFFERDAM_STORAGE_STATE_STATE_ERROR_CONFLICT || refuse_state(failure, &error);
}

static bool busy(text_t handle, failure_t *failure) {
  return refuse(failure, KIND(ABORTED), "%d other calls changed the volume %s at the same time", ATTEMPTS, shown(handle));
}

static void note(const char *message, text_t handle) {
  text_t text = text_of(message);
  sample_tuple2_string_string_t field = {text_of("handle"), handle};
  cofferdam_storage_log_key_values_t fields = {&field, 1};
  cofferdam_storage_log_write(COFFERDAM_STORAGE_LOG_LEVEL_INFO, &text, &fields);
}

// Exports

static bool answer(text_t handle, uint64_t size, volume_t *volume) {
  *volume = (volume_t){
      .handle = handle,
      .capacity_bytes = {true, size},
      .connection_info = {true, {.kind = text_of("none"), .version = 1}},
  };
  return true;
}

// Refuses a request whose name is a volume's that was created with other arguments.
static bool same(const record_t *found, text_t name, range_t range, text_t uses, failure_t *failure) {
  if (!equal(found->name, name)) {
    return refuse(failure, KIND(ALREADY_EXISTS), "another volume's name has the digest of %s", shown(name));
  }
  if (!fits(found->size, range)) {
    return refuse(failure, KIND(ALREADY_EXISTS), "the volume %s exists, with a size of %" PRIu64 " bytes", shown(name), found->size);
  }
  if (!equal(found->uses, uses)) {
    return refuse(failure, KIND(ALREADY_EXISTS), "the volume %s exists, with other capabilities", shown(name));
  }
  return true;
}

bool exports_cofferdam_storage_identity_describe(exports_cofferdam_storage_identity_description_t *description,
                                                 failure_t *failure) {
  (void)failure;
  *description = (exports_cofferdam_storage_identity_description_t){
      .name = text_of(NAME),
      .version = text_of(VERSION),
      .placement = EXPORTS_COFFERDAM_STORAGE_IDENTITY_PLACEMENT_CENTRAL,
  };
  return true;
}

bool exports_cofferdam_storage_identity_probe(exports_cofferdam_storage_identity_readiness_t *readiness, failure_t *failure) {
  (void)failure;
  readiness->tag = EXPORTS_COFFERDAM_STORAGE_IDENTITY_READINESS_READY;
  return true;
}

bool exports_cofferdam_storage_volumes_create(exports_cofferdam_storage_volumes_create_request_t *request, volume_t *volume,
                                              failure_t *failure) {
  text_t handle, uses;
  if (!handle_of(request->name, &handle, failure)) return false;
  if (!no_parameters("parameter", request->parameters, failure)) return false;
  if (!no_parameters("mutable parameter", request->mutable_parameters, failure)) return false;
  if (!uses_of(request->capabilities.ptr, request->capabilities.len, &uses, failure)) return false;
  for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
    bool found, done;
    record_t record;
    uint64_t size;
    if (!find(handle, &found, &record, failure)) return false;
    if (found) {
      return same(&record, request->name, request->capacity, uses, failure) && answer(handle, record.size, volume);
    }
    if (!choose_size(request->capacity, &size, failure)) return false;
    text_t value = encode(size, request->name, uses);
    cofferdam_storage_state_change_t change = {
        .tag = COFFERDAM_STORAGE_STATE_CHANGE_PUT,
        .val.put = {key_of(handle), {value.ptr, value.len}, {.tag = COFFERDAM_STORAGE_STATE_PRECONDITION_ABSENT}},
    };
    if (!commit(change, &done, failure)) return false;
    if (done) {
      note("volume created", handle);
      return answer(handle, size, volume);
    }
  }
  return busy(handle, failure);
}

bool exports_cofferdam_storage_volumes_delete(text_t *handle, failure_t *failure) {
  for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
    bool found, done;
    record_t record;
    if (!find(*handle, &found, &record, failure)) return false;
    if (!found) return true;
    cofferdam_storage_state_change_t change = {
        .tag = COFFERDAM_STORAGE_STATE_CHANGE_REMOVE,
        .val.remove = {key_of(*handle), record.version},
    };
    if (!commit(change, &done, failure)) return false;
    if (done) {
      note("volume deleted", *handle);
      return true;
    }
  }
  return busy(*handle, failure);
}

// Whether a line is among lines.
static bool among(text_t line, text_t lines) {
  text_t each;
  while (take_line(&lines, &each)) {
    if (equal(each, line)) return true;
  }
  return false;
}

bool exports_cofferdam_storage_volumes_validate(exports_cofferdam_storage_volumes_validate_request_t *request,
                                                exports_cofferdam_storage_volumes_validation_t *validation,
                                                failure_t *failure) {
  bool found;
  record_t record;
  text_t uses, use;
  if (!uses_of(request->capabilities.ptr, request->capabilities.len, &uses, failure)) return false;
  if (!find(request->handle, &found, &record, failure)) return false;
  if (!found) return refuse(failure, KIND(NOT_FOUND), "there is no volume %s", shown(request->handle));
  while (take_line(&uses, &use)) {
    if (among(use, record.uses)) continue;
    text_t why = {0};
    append(&why, use.ptr, use.len);
    append_literal(&why, " is not among the ways the volume was created for");
    validation->tag = EXPORTS_COFFERDAM_STORAGE_VOLUMES_VALIDATION_REFUSED;
    validation->val.refused = why;
    return true;
  }
  validation->tag = EXPORTS_COFFERDAM_STORAGE_VOLUMES_VALIDATION_CONFIRMED;
  return true;
}
