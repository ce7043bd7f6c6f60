// A small storage driver. Its volumes and snapshots are entries of the host's `state` and hold no data.
//
// Every call runs in a fresh instance, so nothing is freed. Texts of a result are allocated: the generated code frees them.
// `abort` is a trap.
//
// A function that can fail returns false and has filled `error`, like the exports.

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sample.h"

// Shorter names for generated types.
typedef sample_string_t text_t;
typedef cofferdam_storage_types_storage_error_t error_t;
typedef cofferdam_storage_types_volume_t volume_t;
typedef cofferdam_storage_types_snapshot_t snapshot_t;
typedef cofferdam_storage_types_create_request_t create_request_t;
typedef cofferdam_storage_types_capacity_range_t capacity_t;
typedef cofferdam_storage_types_volume_capability_t capability_t;
typedef cofferdam_storage_types_key_values_t parameters_t;
#define KIND(name) COFFERDAM_STORAGE_TYPES_ERROR_KIND_##name

static const char NAME[] = "c.samples.cofferdam.dev";
static const char VERSION[] = "0.1.0";
static const uint64_t DEFAULT_SIZE = UINT64_C(1) << 30;
static const uint64_t MAX_SIZE = UINT64_C(1) << 50;
// The contract's limit for names, in bytes.
static const size_t MAX_NAME = 128;
// Longer names have a digest in their handle, so that page tokens stay below 128 bytes.
static const size_t MAX_READABLE_NAME = 64;
// The contract's limit for keys of `state`, in bytes.
static const size_t MAX_KEY = 512;
// Key prefixes in `state`. The rest of a key is the handle.
static const char VOLUME[] = "volume/";
static const char SNAPSHOT[] = "snapshot/";
static const uint32_t MAX_PAGE = 1000;
// Attempts to commit a change. An attempt fails if another call changes the same key between the read and the commit.
static const int MAX_ATTEMPTS = 64;
static const size_t DIGEST_DIGITS = 32;
static const size_t TOKEN_DIGITS = 8;

// Texts

static void append(text_t *text, const void *bytes, size_t len) {
  if (len == 0) return;
  uint8_t *grown = realloc(text->ptr, text->len + len);
  if (grown == NULL) abort();
  memcpy(grown + text->len, bytes, len);
  text->ptr = grown;
  text->len += len;
}

static void append_text(text_t *text, text_t other) { append(text, other.ptr, other.len); }

static void append_literal(text_t *text, const char *literal) { append(text, literal, strlen(literal)); }

static text_t text_of(const char *literal) {
  text_t text = {0};
  append_literal(&text, literal);
  return text;
}

static text_t join(const char *prefix, text_t rest) {
  text_t text = text_of(prefix);
  append_text(&text, rest);
  return text;
}

static text_t skip(text_t text, size_t len) { return (text_t){text.ptr + len, text.len - len}; }

static bool equal(text_t a, text_t b) { return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0); }

// Appends a text in quotes. The result contains no other quote, no newline and no NUL.
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

// A text for a message: in quotes, cut between characters, and with a NUL.
static const char *show(text_t raw) {
  if (raw.len > MAX_NAME) {
    raw.len = MAX_NAME;
    while (raw.len > 0 && (raw.ptr[raw.len] & 0xc0) == 0x80) raw.len--;
  }
  text_t quoted = {0};
  append_quoted(&quoted, raw);
  append(&quoted, "", 1);
  return (const char *)quoted.ptr;
}

// FNV-1a with 128 bits. Two names with one digest have one handle: records have names, so the second is rejected.
static void append_digest(text_t *text, text_t name, size_t digits) {
  const unsigned __int128 prime = ((unsigned __int128)0x0000000001000000 << 64) | 0x000000000000013b;
  unsigned __int128 hash = ((unsigned __int128)0x6c62272e07bb0142 << 64) | 0x62b821756295c58d;
  for (size_t i = 0; i < name.len; i++) hash = (hash ^ name.ptr[i]) * prime;
  char hex[33];
  snprintf(hex, sizeof hex, "%016" PRIx64 "%016" PRIx64, (uint64_t)(hash >> 64), (uint64_t)hash);
  append(text, hex, digits);
}

// Errors

// Fails a call that had no effect.
__attribute__((format(printf, 3, 4))) static bool fail(error_t *error, uint8_t kind, const char *format, ...) {
  char message[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  *error = (error_t){
      .kind = kind,
      .message = text_of(message),
      .finality = COFFERDAM_STORAGE_TYPES_FINALITY_FINAL,
  };
  return false;
}

static bool fail_with_state_error(error_t *error, const cofferdam_storage_state_state_error_t *cause) {
  switch (cause->tag) {
    case COFFERDAM_STORAGE_STATE_STATE_ERROR_FULL:
      return fail(error, KIND(RESOURCE_EXHAUSTED), "the state would have %" PRIu64 " bytes; its limit is %" PRIu64,
                  cause->val.full.given, cause->val.full.limit);
    case COFFERDAM_STORAGE_STATE_STATE_ERROR_VALUE_SIZE:
      return fail(error, KIND(RESOURCE_EXHAUSTED), "the record would have %" PRIu64 " bytes; its limit is %" PRIu64,
                  cause->val.value_size.given, cause->val.value_size.limit);
    case COFFERDAM_STORAGE_STATE_STATE_ERROR_UNAVAILABLE:
      fail(error, KIND(UNAVAILABLE), "the state is unavailable: %s", show(cause->val.unavailable));
      break;
    default:
      fail(error, KIND(INTERNAL), "the state failed with reason %d", cause->tag);
  }
  // An earlier call of the same name may have had an effect, which this call could not look up.
  error->finality = COFFERDAM_STORAGE_TYPES_FINALITY_UNKNOWN;
  return false;
}

static bool fail_with_conflicts(error_t *error, text_t key) {
  return fail(error, KIND(ABORTED), "other calls have changed %s %d times during this call", show(key), MAX_ATTEMPTS);
}

// Requests

static bool has_control(text_t text) {
  for (size_t i = 0; i < text.len; i++) {
    uint8_t byte = text.ptr[i];
    // U+0080 to U+009F are the bytes c2 80 to c2 9f.
    if (byte < 0x20 || byte == 0x7f) return true;
    if (byte == 0xc2 && i + 1 < text.len && text.ptr[i + 1] < 0xa0) return true;
  }
  return false;
}

// Derives the key of a name: always the same one. Its handle is readable if the name is short.
static bool key_from_name(const char *prefix, const char *handle_prefix, text_t name, text_t *key, error_t *error) {
  if (name.len == 0 || name.len > MAX_NAME || has_control(name)) {
    return fail(error, KIND(INVALID_ARGUMENT), "the name has %zu bytes; expected 1 to %zu without control characters",
                name.len, MAX_NAME);
  }
  *key = text_of(prefix);
  append_literal(key, handle_prefix);
  if (name.len <= MAX_READABLE_NAME) {
    append_text(key, name);
  } else {
    append_literal(key, "fnv-");
    append_digest(key, name, DIGEST_DIGITS);
  }
  return true;
}

static bool check_parameters(parameters_t parameters, error_t *error) {
  if (parameters.len == 0) return true;
  return fail(error, KIND(INVALID_ARGUMENT), "unknown parameter %s: this driver has none", show(parameters.ptr[0].f0));
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

static void append_option(text_t *text, sample_option_string_t option) {
  if (option.is_some) append_quoted(text, option.val);
  else append_literal(text, "none");
}

// A capability as a line.
static text_t canonical_capability(const capability_t *capability) {
  text_t line = text_of(MODES[capability->mode]);
  if (capability->access.tag == COFFERDAM_STORAGE_TYPES_ACCESS_TYPE_BLOCK) {
    append_literal(&line, " block\n");
    return line;
  }
  const cofferdam_storage_types_filesystem_access_t *access = &capability->access.val.filesystem;
  append_literal(&line, " filesystem ");
  append_option(&line, access->fs_type);
  append_literal(&line, " [");
  for (size_t i = 0; i < access->mount_flags.len; i++) append_quoted(&line, access->mount_flags.ptr[i]);
  append_literal(&line, "] ");
  append_option(&line, access->mount_group);
  append_literal(&line, "\n");
  return line;
}

static int by_bytes(const void *left, const void *right) {
  const text_t *a = left, *b = right;
  int order = memcmp(a->ptr, b->ptr, a->len < b->len ? a->len : b->len);
  return order != 0 ? order : (a->len > b->len) - (a->len < b->len);
}

// Returns the capabilities as sorted lines without duplicates: the order of a request has no meaning.
static bool canonical_capabilities(const capability_t *capabilities, size_t len, text_t *canonical, error_t *error) {
  if (len == 0) {
    return fail(error, KIND(INVALID_ARGUMENT), "no volume capability was given; expected at least one");
  }
  text_t *lines = calloc(len, sizeof *lines);
  if (lines == NULL) abort();
  for (size_t i = 0; i < len; i++) lines[i] = canonical_capability(&capabilities[i]);
  qsort(lines, len, sizeof *lines, by_bytes);
  *canonical = (text_t){0};
  for (size_t i = 0; i < len; i++) {
    if (i == 0 || !equal(lines[i], lines[i - 1])) append_text(canonical, lines[i]);
  }
  return true;
}

// Takes the first line off a text, without its newline.
static bool take_line(text_t *text, text_t *line) {
  uint8_t *end = text->len == 0 ? NULL : memchr(text->ptr, '\n', text->len);
  if (end == NULL) return false;
  *line = (text_t){text->ptr, (size_t)(end - text->ptr)};
  *text = skip(*text, line->len + 1);
  return true;
}

static bool has_line(text_t lines, text_t line) {
  text_t each;
  while (take_line(&lines, &each)) {
    if (equal(each, line)) return true;
  }
  return false;
}

static uint64_t min(uint64_t a, uint64_t b) { return a < b ? a : b; }

// Chooses the required size, or the default: the size of the source, or DEFAULT_SIZE. Without a source, `source_size` is 0.
static bool choose_size(capacity_t capacity, uint64_t source_size, uint64_t *size, error_t *error) {
  uint64_t minimum = source_size > 0 ? source_size : 1;
  uint64_t maximum = capacity.limit_bytes.is_some ? min(MAX_SIZE, capacity.limit_bytes.val) : MAX_SIZE;
  if (capacity.required_bytes.is_some) *size = capacity.required_bytes.val;
  else *size = source_size > 0 ? source_size : min(DEFAULT_SIZE, maximum);
  if (*size >= minimum && *size <= maximum) return true;
  return fail(error, KIND(OUT_OF_RANGE), "the size is %" PRIu64 " bytes; the minimum is %" PRIu64 ", the maximum %" PRIu64,
              *size, minimum, maximum);
}

static bool is_in_range(uint64_t size, capacity_t capacity) {
  return (!capacity.required_bytes.is_some || size >= capacity.required_bytes.val) &&
         (!capacity.limit_bytes.is_some || size <= capacity.limit_bytes.val);
}

// Records. Numbers have 8 bytes; a text follows its length.

typedef struct {
  text_t name;
  uint64_t size;
  // Key of the volume or snapshot with the original content; empty for a volume that was created empty.
  text_t source;
  // Of a volume: sorted lines.
  text_t capabilities;
  // Of a snapshot.
  uint64_t created_at_ms;
  cofferdam_storage_types_option_snapshot_owner_t owner;
} record_t;

static void put_number(text_t *value, uint64_t number) { append(value, &number, sizeof number); }

static void put_text(text_t *value, text_t text) {
  put_number(value, text.len);
  append_text(value, text);
}

static text_t encode(const record_t *record) {
  text_t value = {0};
  put_text(&value, record->name);
  put_number(&value, record->size);
  put_text(&value, record->source);
  put_text(&value, record->capabilities);
  put_number(&value, record->created_at_ms);
  put_number(&value, record->owner.is_some);
  put_text(&value, record->owner.val.cluster_id);
  put_text(&value, record->owner.val.snapshot_uid);
  put_text(&value, record->owner.val.content_name);
  put_number(&value, record->owner.val.reclaim_policy);
  return value;
}

static bool take_number(text_t *value, uint64_t *number) {
  if (value->len < sizeof *number) return false;
  memcpy(number, value->ptr, sizeof *number);
  *value = skip(*value, sizeof *number);
  return true;
}

static bool take_text(text_t *value, text_t *text) {
  uint64_t len;
  if (!take_number(value, &len) || len > value->len) return false;
  *text = (text_t){value->ptr, len};
  *value = skip(*value, len);
  return true;
}

static bool decode(text_t key, sample_list_u8_t bytes, record_t *record, error_t *error) {
  text_t value = {bytes.ptr, bytes.len};
  uint64_t has_owner, policy;
  if (take_text(&value, &record->name) && take_number(&value, &record->size) && take_text(&value, &record->source) &&
      take_text(&value, &record->capabilities) && take_number(&value, &record->created_at_ms) &&
      take_number(&value, &has_owner) && take_text(&value, &record->owner.val.cluster_id) &&
      take_text(&value, &record->owner.val.snapshot_uid) && take_text(&value, &record->owner.val.content_name) &&
      take_number(&value, &policy) && policy <= COFFERDAM_STORAGE_TYPES_RECLAIM_POLICY_RETAIN && value.len == 0) {
    record->owner.is_some = has_owner != 0;
    record->owner.val.reclaim_policy = (uint8_t)policy;
    return true;
  }
  fail(error, KIND(INTERNAL), "the record of %s is not readable", show(key));
  error->finality = COFFERDAM_STORAGE_TYPES_FINALITY_UNKNOWN;
  return false;
}

// State

static bool read_entry(text_t key, cofferdam_storage_state_option_entry_t *entry, error_t *error) {
  cofferdam_storage_state_state_error_t cause;
  entry->is_some = false;
  // Handles in requests have any length.
  if (key.len > MAX_KEY) return true;
  return cofferdam_storage_state_get(&key, entry, &cause) || fail_with_state_error(error, &cause);
}

// Reads the record of a key that must exist.
static bool require_record(text_t key, record_t *record, error_t *error) {
  cofferdam_storage_state_option_entry_t entry;
  if (!read_entry(key, &entry, error)) return false;
  if (!entry.is_some) return fail(error, KIND(NOT_FOUND), "%s does not exist", show(key));
  return decode(key, entry.val.value, record, error);
}

// Commits a change. `committed` is false if another call has changed the key first.
static bool commit(cofferdam_storage_state_change_t change, bool *committed, error_t *error) {
  cofferdam_storage_state_list_change_t changes = {&change, 1};
  cofferdam_storage_state_version_t version;
  cofferdam_storage_state_state_error_t cause;
  *committed = cofferdam_storage_state_commit(&changes, &version, &cause);
  return *committed || cause.tag == COFFERDAM_STORAGE_STATE_STATE_ERROR_CONFLICT || fail_with_state_error(error, &cause);
}

static void log_info(const char *message, text_t key) {
  text_t text = text_of(message);
  sample_tuple2_string_string_t field = {text_of("key"), key};
  cofferdam_storage_log_key_values_t fields = {&field, 1};
  cofferdam_storage_log_write(COFFERDAM_STORAGE_LOG_LEVEL_INFO, &text, &fields);
}

// Reads the record with the name and source of `record`, or creates `record` with a size of the range.
static bool find_or_create(text_t key, capacity_t capacity, record_t *record, error_t *error) {
  for (int attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
    cofferdam_storage_state_option_entry_t entry;
    if (!read_entry(key, &entry, error)) return false;
    if (entry.is_some) {
      record_t found;
      if (!decode(key, entry.val.value, &found, error)) return false;
      if (!equal(found.name, record->name)) {
        return fail(error, KIND(ALREADY_EXISTS), "%s exists with the name %s", show(key), show(found.name));
      }
      if (!equal(found.source, record->source)) {
        return fail(error, KIND(ALREADY_EXISTS), "%s exists with the source %s", show(key), show(found.source));
      }
      *record = found;
      return true;
    }
    record_t source = {0};
    if (record->source.len > 0 && !require_record(record->source, &source, error)) return false;
    if (!choose_size(capacity, source.size, &record->size, error)) return false;
    text_t value = encode(record);
    cofferdam_storage_state_change_t change = {
        .tag = COFFERDAM_STORAGE_STATE_CHANGE_PUT,
        .val.put = {key, {value.ptr, value.len}, {.tag = COFFERDAM_STORAGE_STATE_PRECONDITION_ABSENT}},
    };
    bool committed;
    if (!commit(change, &committed, error)) return false;
    if (committed) {
      log_info("created", key);
      return true;
    }
  }
  return fail_with_conflicts(error, key);
}

static bool delete_record(text_t key, error_t *error) {
  for (int attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
    cofferdam_storage_state_option_entry_t entry;
    if (!read_entry(key, &entry, error)) return false;
    if (!entry.is_some) return true;
    cofferdam_storage_state_change_t change = {
        .tag = COFFERDAM_STORAGE_STATE_CHANGE_REMOVE,
        .val.remove = {key, entry.val.version},
    };
    bool committed;
    if (!commit(change, &committed, error)) return false;
    if (committed) {
      log_info("deleted", key);
      return true;
    }
  }
  return fail_with_conflicts(error, key);
}

// identity

bool exports_cofferdam_storage_identity_describe(exports_cofferdam_storage_identity_description_t *description,
                                                 error_t *error) {
  (void)error;
  *description = (exports_cofferdam_storage_identity_description_t){
      .name = text_of(NAME),
      .version = text_of(VERSION),
      .placement = EXPORTS_COFFERDAM_STORAGE_IDENTITY_PLACEMENT_CENTRAL,
  };
  return true;
}

bool exports_cofferdam_storage_identity_probe(exports_cofferdam_storage_identity_readiness_t *readiness, error_t *error) {
  (void)error;
  readiness->tag = EXPORTS_COFFERDAM_STORAGE_IDENTITY_READINESS_READY;
  return true;
}

// volumes, cloning, restoring

static text_t handle_of_key(const char *prefix, text_t key) { return join("", skip(key, strlen(prefix))); }

static bool create_volume(const create_request_t *request, text_t source, volume_t *volume, error_t *error) {
  text_t key, capabilities;
  if (!key_from_name(VOLUME, "vol-", request->name, &key, error)) return false;
  if (!check_parameters(request->parameters, error)) return false;
  if (!check_parameters(request->mutable_parameters, error)) return false;
  if (!canonical_capabilities(request->capabilities.ptr, request->capabilities.len, &capabilities, error)) return false;
  record_t record = {.name = request->name, .source = source, .capabilities = capabilities};
  if (!find_or_create(key, request->capacity, &record, error)) return false;
  if (!is_in_range(record.size, request->capacity)) {
    return fail(error, KIND(ALREADY_EXISTS), "%s exists with a size of %" PRIu64 " bytes", show(key), record.size);
  }
  if (!equal(record.capabilities, capabilities)) {
    return fail(error, KIND(ALREADY_EXISTS), "%s exists with other capabilities", show(key));
  }
  *volume = (volume_t){
      .handle = handle_of_key(VOLUME, key),
      .capacity_bytes = {true, record.size},
      .connection_info = {true, {.kind = text_of("none"), .version = 1}},
  };
  return true;
}

bool exports_cofferdam_storage_volumes_create(create_request_t *request, volume_t *volume, error_t *error) {
  return create_volume(request, (text_t){0}, volume, error);
}

bool exports_cofferdam_storage_cloning_create_from_volume(create_request_t *request, text_t *source, volume_t *volume,
                                                          error_t *error) {
  return create_volume(request, join(VOLUME, *source), volume, error);
}

bool exports_cofferdam_storage_restoring_create_from_snapshot(create_request_t *request, text_t *source, volume_t *volume,
                                                              error_t *error) {
  return create_volume(request, join(SNAPSHOT, *source), volume, error);
}

bool exports_cofferdam_storage_volumes_delete(text_t *handle, error_t *error) {
  return delete_record(join(VOLUME, *handle), error);
}

static bool refuse(exports_cofferdam_storage_volumes_validation_t *validation, text_t reason) {
  validation->tag = EXPORTS_COFFERDAM_STORAGE_VOLUMES_VALIDATION_REFUSED;
  validation->val.refused = reason;
  return true;
}

bool exports_cofferdam_storage_volumes_validate(exports_cofferdam_storage_volumes_validate_request_t *request,
                                                exports_cofferdam_storage_volumes_validation_t *validation, error_t *error) {
  text_t capabilities, capability;
  record_t record;
  error_t unknown;
  if (!canonical_capabilities(request->capabilities.ptr, request->capabilities.len, &capabilities, error)) return false;
  if (!require_record(join(VOLUME, request->handle), &record, error)) return false;
  if (!check_parameters(request->parameters, &unknown) || !check_parameters(request->mutable_parameters, &unknown)) {
    return refuse(validation, unknown.message);
  }
  while (take_line(&capabilities, &capability)) {
    if (!has_line(record.capabilities, capability)) {
      return refuse(validation, join("the volume was not created for ", capability));
    }
  }
  validation->tag = EXPORTS_COFFERDAM_STORAGE_VOLUMES_VALIDATION_CONFIRMED;
  return true;
}

// snapshots

static snapshot_t snapshot_of(text_t key, const record_t *record) {
  snapshot_t snapshot = {
      .handle = handle_of_key(SNAPSHOT, key),
      .source = handle_of_key(VOLUME, record->source),
      .size_bytes = {true, record->size},
      .created_at_ms = record->created_at_ms,
      .ready = true,
      .owner = record->owner,
  };
  // The generated code frees each text of the result on its own.
  snapshot.owner.val.cluster_id = join("", record->owner.val.cluster_id);
  snapshot.owner.val.snapshot_uid = join("", record->owner.val.snapshot_uid);
  snapshot.owner.val.content_name = join("", record->owner.val.content_name);
  return snapshot;
}

bool exports_cofferdam_storage_snapshots_create(exports_cofferdam_storage_snapshots_snapshot_request_t *request,
                                                snapshot_t *snapshot, error_t *error) {
  text_t key;
  if (!key_from_name(SNAPSHOT, "snap-", request->name, &key, error)) return false;
  if (!check_parameters(request->parameters, error)) return false;
  record_t record = {
      .name = request->name,
      .source = join(VOLUME, request->source),
      .created_at_ms = cofferdam_storage_ambient_now_ms(),
  };
  // The value of an absent owner is not initialized.
  if (request->owner.is_some) {
    record.owner.is_some = true;
    record.owner.val = request->owner.val;
  }
  // Without bounds the size is that of the source.
  if (!find_or_create(key, (capacity_t){0}, &record, error)) return false;
  *snapshot = snapshot_of(key, &record);
  return true;
}

bool exports_cofferdam_storage_snapshots_delete(text_t *handle, error_t *error) {
  return delete_record(join(SNAPSHOT, *handle), error);
}

bool exports_cofferdam_storage_snapshots_get(text_t *handle, snapshot_t *snapshot, error_t *error) {
  text_t key = join(SNAPSHOT, *handle);
  record_t record;
  if (!require_record(key, &record, error)) return false;
  *snapshot = snapshot_of(key, &record);
  return true;
}

// The token of the page after a key. The digest distinguishes it from other text.
static text_t token_of(text_t key) {
  text_t token = {0};
  append_digest(&token, key, TOKEN_DIGITS);
  append_text(&token, key);
  return token;
}

static bool key_of_token(text_t token, text_t *key, error_t *error) {
  if (token.len > TOKEN_DIGITS) {
    *key = skip(token, TOKEN_DIGITS);
    if (equal(token, token_of(*key))) return true;
  }
  return fail(error, KIND(ABORTED), "no listing returned the token %s", show(token));
}

bool exports_cofferdam_storage_snapshots_list(text_t *source, text_t *after, uint32_t *limit,
                                              exports_cofferdam_storage_snapshots_snapshot_page_t *page, error_t *error) {
  text_t last_key = {0}, prefix = text_of(SNAPSHOT);
  cofferdam_storage_state_page_t scanned;
  cofferdam_storage_state_state_error_t cause;
  if (after != NULL && !key_of_token(*after, &last_key, error)) return false;
  uint32_t max = limit != NULL && *limit < MAX_PAGE ? *limit : MAX_PAGE;
  if (!cofferdam_storage_state_scan(&prefix, after == NULL ? NULL : &last_key, max, &scanned, &cause)) {
    return fail_with_state_error(error, &cause);
  }
  text_t volume = source == NULL ? (text_t){0} : join(VOLUME, *source);
  // One more than the entries: the allocation of an empty page could be NULL.
  snapshot_t *snapshots = calloc(scanned.entries.len + 1, sizeof *snapshots);
  if (snapshots == NULL) abort();
  size_t len = 0;
  for (size_t i = 0; i < scanned.entries.len; i++) {
    const cofferdam_storage_state_scan_entry_t *entry = &scanned.entries.ptr[i];
    record_t record;
    if (!decode(entry->key, entry->value, &record, error)) return false;
    last_key = entry->key;
    if (source == NULL || equal(record.source, volume)) snapshots[len++] = snapshot_of(entry->key, &record);
  }
  // A page of one volume's snapshots may have fewer entries than the limit, or none, and still have a next page.
  *page = (exports_cofferdam_storage_snapshots_snapshot_page_t){.snapshots = {snapshots, len}};
  if (scanned.more) page->next = (sample_option_string_t){true, token_of(last_key)};
  return true;
}
