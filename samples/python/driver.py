"""A small storage driver. Its volumes and snapshots are entries of the host's `state` and hold no data.

Every call runs in a fresh interpreter: module variables are constants. An exception other than `Err(StorageError)` is a trap.
"""

import functools
import hashlib
import json
import unicodedata
from dataclasses import asdict, dataclass, field

from componentize_py_types import Err
from wit_world import exports
from wit_world.exports.identity import Description, Placement, Readiness_Ready
from wit_world.exports.snapshots import SnapshotPage
from wit_world.exports.volumes import Validation_Confirmed, Validation_Refused
from wit_world.imports import ambient, log, state
from wit_world.imports.types import (
    AccessType_Block,
    ConnectionInfo,
    ErrorKind,
    Finality,
    ReclaimPolicy,
    Snapshot,
    SnapshotOwner,
    StorageError,
    Volume,
)

NAME = "python.samples.cofferdam.dev"
VERSION = "0.1.0"
DEFAULT_SIZE = 1 << 30
MAX_SIZE = 1 << 50
# The contract's limit for names, in bytes.
MAX_NAME = 128
# Longer names have a digest in their handle, so that page tokens stay below 128 bytes.
MAX_READABLE_NAME = 64
# The contract's limit for keys of `state`, in bytes.
MAX_KEY = 512
# Key prefixes in `state`. The rest of a key is the handle.
VOLUME = "volume/"
SNAPSHOT = "snapshot/"
MAX_PAGE = 1000
# Attempts to commit a change. An attempt fails if another call changes the same key between the read and the commit.
MAX_ATTEMPTS = 64


@dataclass
class Record:
    """The stored record of a volume or snapshot."""

    name: str
    size: int
    # Key of the volume or snapshot with the original content; None for a volume that was created empty.
    source: str | None
    # Of a volume: canonical strings, sorted.
    capabilities: list = field(default_factory=list)
    # Of a snapshot.
    created_at_ms: int = 0
    owner: list | None = None


def log_exceptions(export):
    """Logs an exception that becomes a trap. With `--stub-wasi` the host gets no other message."""

    @functools.wraps(export)
    def logged(*arguments):
        try:
            return export(*arguments)
        except Err:
            raise
        except Exception as error:
            # The module `traceback` would look for source files, which is a trap as well.
            trace, frames = error.__traceback__, []
            while trace is not None:
                frames.append(f"{trace.tb_frame.f_code.co_name}:{trace.tb_lineno}")
                trace = trace.tb_next
            log.write(log.Level.ERROR, repr(error), [("trace", " ".join(frames))])
            raise

    return logged


class Identity(exports.Identity):
    def describe(self):
        return Description(NAME, VERSION, [], Placement.CENTRAL, None, [])

    def probe(self):
        return Readiness_Ready()


class Volumes(exports.Volumes):
    @log_exceptions
    def create(self, request):
        return create_volume(request, source=None)

    @log_exceptions
    def delete(self, handle):
        delete_record(VOLUME + handle)

    @log_exceptions
    def validate(self, request):
        capabilities = canonical_capabilities(request.capabilities)
        record = require(VOLUME + request.handle)
        unknown = unknown_parameter(request.parameters + request.mutable_parameters)
        if unknown is not None:
            return Validation_Refused(unknown)
        for capability in capabilities:
            if capability not in record.capabilities:
                return Validation_Refused(f"the volume was not created for {capability}")
        return Validation_Confirmed()


class Cloning(exports.Cloning):
    @log_exceptions
    def create_from_volume(self, request, source):
        return create_volume(request, VOLUME + source)


class Restoring(exports.Restoring):
    @log_exceptions
    def create_from_snapshot(self, request, source):
        return create_volume(request, SNAPSHOT + source)


class Snapshots(exports.Snapshots):
    @log_exceptions
    def create(self, request):
        key = SNAPSHOT + handle_from_name("snap", request.name)
        source = VOLUME + request.source
        check_parameters(request.parameters)

        def new_record():
            size = require(source).size
            return Record(
                request.name, size, source, created_at_ms=ambient.now_ms(), owner=stored_owner(request.owner)
            )

        return snapshot(key, find_or_create(key, request.name, source, new_record))

    @log_exceptions
    def delete(self, handle):
        delete_record(SNAPSHOT + handle)

    @log_exceptions
    def get(self, handle):
        key = SNAPSHOT + handle
        return snapshot(key, require(key))

    @log_exceptions
    def list(self, source, after, limit):
        last_key = None if after is None else key_of_token(after)
        page_size = MAX_PAGE if limit is None else min(limit, MAX_PAGE)
        page = call_state(state.scan, SNAPSHOT, last_key, page_size)
        snapshots = []
        for entry in page.entries:
            record = decode(entry.key, entry.value)
            if source is None or record.source == VOLUME + source:
                snapshots.append(snapshot(entry.key, record))
        # A page of one volume's snapshots may have fewer entries than the limit, or none, and still have a next page.
        return SnapshotPage(snapshots, token(page.entries[-1].key) if page.more else None)


def create_volume(request, source):
    key = VOLUME + handle_from_name("vol", request.name)
    check_parameters(request.parameters + request.mutable_parameters)
    capabilities = canonical_capabilities(request.capabilities)

    def new_record():
        source_size = None if source is None else require(source).size
        return Record(request.name, choose_size(request.capacity, source_size), source, capabilities)

    record = find_or_create(key, request.name, source, new_record)
    required, limit = request.capacity.required_bytes, request.capacity.limit_bytes
    if (required is not None and record.size < required) or (limit is not None and record.size > limit):
        raise already_exists(key, f"a size of {record.size} bytes")
    if record.capabilities != capabilities:
        raise already_exists(key, f"the capabilities {', '.join(record.capabilities)}")
    return Volume(handle_of_key(key), record.size, [], [], ConnectionInfo("none", 1, []))


def snapshot(key, record):
    owner = None
    if record.owner is not None:
        *names, policy = record.owner
        owner = SnapshotOwner(*names, ReclaimPolicy[policy])
    source = handle_of_key(record.source)
    return Snapshot(handle_of_key(key), source, record.size, record.created_at_ms, True, None, owner)


def stored_owner(owner):
    if owner is None:
        return None
    return [owner.cluster_id, owner.snapshot_uid, owner.content_name, owner.reclaim_policy.name]


def handle_from_name(prefix, name):
    """Returns the handle of a name: always the same one, and readable if the name is short."""
    length = len(name.encode())
    if not 1 <= length <= MAX_NAME or any(unicodedata.category(c) == "Cc" for c in name):
        raise failure(
            ErrorKind.INVALID_ARGUMENT,
            f"the name has {length} bytes; expected 1 to {MAX_NAME} without control characters",
        )
    if length <= MAX_READABLE_NAME:
        return f"{prefix}-{name}"
    return f"{prefix}-sha256-{digest(name)}"


def handle_of_key(key):
    return key.partition("/")[2]


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


def unknown_parameter(parameters):
    return f"unknown parameter {parameters[0][0]!r}: this driver has none" if parameters else None


def check_parameters(parameters):
    unknown = unknown_parameter(parameters)
    if unknown is not None:
        raise failure(ErrorKind.INVALID_ARGUMENT, unknown)


def canonical_capabilities(capabilities):
    """Returns the capabilities as sorted strings: the order of a request has no meaning."""
    if not capabilities:
        raise failure(ErrorKind.INVALID_ARGUMENT, "no volume capability was given; expected at least one")
    return sorted({canonical_capability(capability) for capability in capabilities})


def canonical_capability(capability):
    mode = capability.mode.name.lower().replace("_", "-")
    if isinstance(capability.access, AccessType_Block):
        return f"{mode} block"
    access = capability.access.value
    # JSON distinguishes an absent text from an empty one, and one flag with a comma from two flags.
    return f"{mode} filesystem {json.dumps([access.fs_type, access.mount_flags, access.mount_group])}"


def choose_size(capacity, source_size):
    """Returns the required size, or the default: the size of the source, or `DEFAULT_SIZE`."""
    required, limit = capacity.required_bytes, capacity.limit_bytes
    size = required
    if size is None:
        size = source_size or min(DEFAULT_SIZE, MAX_SIZE if limit is None else limit)
    minimum = source_size or 1
    maximum = MAX_SIZE if limit is None else min(MAX_SIZE, limit)
    if not minimum <= size <= maximum:
        message = f"the size is {size} bytes; the minimum is {minimum}, the maximum {maximum}"
        raise failure(ErrorKind.OUT_OF_RANGE, message)
    return size


def token(key):
    """Returns the token of the page after a key. The digest distinguishes it from other text."""
    return f"{digest(key)[:8]}.{key}"


def key_of_token(after):
    key = after.partition(".")[2]
    if after != token(key):
        raise failure(ErrorKind.ABORTED, f"no listing returned the token {shorten(after)}")
    return key


def find_or_create(key, name, source, new_record):
    """Returns the record of a name, and creates it if it does not exist."""
    for _ in range(MAX_ATTEMPTS):
        entry = read(key)
        if entry is not None:
            record = decode(key, entry.value)
            if record.name != name:
                raise already_exists(key, f"the name {record.name!r}")
            if record.source != source:
                raise already_exists(key, f"the source {record.source or 'none'}")
            return record
        record = new_record()
        value = json.dumps(asdict(record)).encode()
        if commit(state.Change_Put(state.Put(key, value, state.Precondition_Absent()))):
            log.write(log.Level.INFO, "created", [("key", key), ("bytes", str(record.size))])
            return record
    raise too_many_conflicts(key)


def delete_record(key):
    for _ in range(MAX_ATTEMPTS):
        entry = read(key)
        if entry is None:
            return
        if commit(state.Change_Remove(state.Remove(key, entry.version))):
            log.write(log.Level.INFO, "deleted", [("key", key)])
            return
    raise too_many_conflicts(key)


def require(key):
    """Returns the record of a key that must exist."""
    entry = read(key)
    if entry is None:
        raise failure(ErrorKind.NOT_FOUND, f"{shorten(key)} does not exist")
    return decode(key, entry.value)


def read(key):
    # Handles in requests have any length.
    return None if len(key.encode()) > MAX_KEY else call_state(state.get, key)


def decode(key, value):
    try:
        return Record(**json.loads(value))
    except (ValueError, TypeError):
        raise failure(ErrorKind.INTERNAL, f"the record of {key} is not readable", Finality.UNKNOWN)


def commit(change):
    """Commits a change. Returns False if another call has changed the key first."""
    try:
        state.commit([change])
        return True
    except Err as error:
        if isinstance(error.value, state.StateError_Conflict):
            return False
        raise storage_error(error.value)


def call_state(function, *arguments):
    try:
        return function(*arguments)
    except Err as error:
        raise storage_error(error.value)


def storage_error(error):
    match error:
        case state.StateError_Full(bound):
            message = f"the state would have {bound.given} bytes; its limit is {bound.limit}"
            return failure(ErrorKind.RESOURCE_EXHAUSTED, message)
        case state.StateError_ValueSize(bound):
            message = f"the record would have {bound.given} bytes; its limit is {bound.limit}"
            return failure(ErrorKind.RESOURCE_EXHAUSTED, message)
        case state.StateError_Unavailable(reason):
            # An earlier call of the same name may have had an effect, which this call could not look up.
            return failure(ErrorKind.UNAVAILABLE, f"the state is unavailable: {reason}", Finality.UNKNOWN)
        case _:
            return failure(ErrorKind.INTERNAL, f"the state failed: {error}", Finality.UNKNOWN)


def shorten(text):
    return repr(text[:MAX_NAME])


def already_exists(key, difference):
    return failure(ErrorKind.ALREADY_EXISTS, f"{key} exists with {difference}")


def too_many_conflicts(key):
    return failure(ErrorKind.ABORTED, f"other calls have changed {key} {MAX_ATTEMPTS} times during this call")


def failure(kind, message, finality=Finality.FINAL):
    return Err(StorageError(kind, message, None, finality))
