"""A small storage driver: its volumes are entries of the host's `state`, and hold no data.

Every call runs in a fresh interpreter: module variables are constants, what has to last goes into `state`. Whatever is raised
and is not `Err(StorageError)` ends the call as a trap, so what can fail is answered on purpose.
"""

import functools
import hashlib
import json
import unicodedata

from componentize_py_types import Err
from wit_world import exports
from wit_world.exports.identity import Description, Placement, Readiness_Ready
from wit_world.exports.volumes import Validation_Confirmed, Validation_Refused
from wit_world.imports import log, state
from wit_world.imports.types import (
    AccessType_Block,
    ConnectionInfo,
    ErrorKind,
    Finality,
    StorageError,
    Volume,
)

NAME = "python.samples.cofferdam.dev"
VERSION = "0.1.0"
PREFIX = "py-"
DEFAULT_SIZE = 1 << 30
MAX_SIZE = 1 << 50
# CSI's limit for names and ids, in bytes.
MAX_TEXT = 128
# How often a decision is made anew after a foreign write of the same volume.
ATTEMPTS = 64


def told(call):
    """Gives a defect to the host's log before the call ends: without WASI, a trap has no words."""

    @functools.wraps(call)
    def told_call(*arguments):
        try:
            return call(*arguments)
        except Err:
            raise
        except Exception as error:
            # The module traceback would look for source files, which is a trap as well.
            trace, lines = error.__traceback__, []
            while trace is not None:
                lines.append(f"{trace.tb_frame.f_code.co_name}:{trace.tb_lineno}")
                trace = trace.tb_next
            log.write(log.Level.ERROR, repr(error), [("trace", " ".join(lines))])
            raise

    return told_call


class Identity(exports.Identity):
    def describe(self):
        return Description(NAME, VERSION, [], Placement.CENTRAL, None, [])

    def probe(self):
        return Readiness_Ready()


class Volumes(exports.Volumes):
    @told
    def create(self, request):
        handle = handle_of(request.name)
        refuse_parameters(request)
        uses = uses_of(request.capabilities)
        for _ in range(ATTEMPTS):
            entry = read(handle)
            if entry is not None:
                found = decode(handle, entry)
                refuse_other(found, request, uses)
                return volume(handle, found["size"])
            size = choose_size(request.capacity)
            record = {"name": request.name, "size": size, "uses": uses}
            put = state.Put(key_of(handle), json.dumps(record).encode(), state.Precondition_Absent())
            if commit(state.Change_Put(put)):
                log.write(log.Level.INFO, "volume created", [("handle", handle), ("bytes", str(size))])
                return volume(handle, size)
        raise busy(handle)

    @told
    def delete(self, handle):
        for _ in range(ATTEMPTS):
            entry = read(handle)
            if entry is None:
                return
            if commit(state.Change_Remove(state.Remove(key_of(handle), entry.version))):
                log.write(log.Level.INFO, "volume deleted", [("handle", handle)])
                return
        raise busy(handle)

    @told
    def validate(self, request):
        uses = uses_of(request.capabilities)
        entry = read(request.handle)
        if entry is None:
            raise refused(ErrorKind.NOT_FOUND, f"there is no volume {request.handle[:MAX_TEXT]!r}")
        created_for = decode(request.handle, entry)["uses"]
        for use in uses:
            if use not in created_for:
                why = f"{use} is not among the ways the volume was created for: {', '.join(created_for)}"
                return Validation_Refused(why)
        return Validation_Confirmed()


def handle_of(name):
    """The handle of a name: readable while that fits, the same for the same name."""
    length = len(name.encode())
    if not 1 <= length <= MAX_TEXT or any(unicodedata.category(c) == "Cc" for c in name):
        raise refused(
            ErrorKind.INVALID_ARGUMENT,
            f"the volume name has {length} bytes; expected 1 to {MAX_TEXT} without control characters",
        )
    if len(PREFIX) + length <= MAX_TEXT:
        return PREFIX + name
    return PREFIX + "sha256-" + hashlib.sha256(name.encode()).hexdigest()


def refuse_parameters(request):
    for what, pairs in (("parameter", request.parameters), ("mutable parameter", request.mutable_parameters)):
        for key, _ in pairs:
            raise refused(ErrorKind.INVALID_ARGUMENT, f"unknown {what} {key!r}: this driver has none")


def uses_of(capabilities):
    """Every way of use, written out, sorted: two requests with the same ways have the same list."""
    if not capabilities:
        raise refused(ErrorKind.INVALID_ARGUMENT, "no volume capability was given; expected at least one")
    return sorted({use_of(capability) for capability in capabilities})


def use_of(capability):
    access = capability.access
    mode = capability.mode.name.lower().replace("_", "-")
    if isinstance(access, AccessType_Block):
        return f"{mode} block"
    filesystem = access.value
    # JSON keeps an absent text and an empty one, and one flag with a comma and two flags, apart.
    details = json.dumps([filesystem.fs_type, filesystem.mount_flags, filesystem.mount_group])
    return f"{mode} filesystem {details}"


def choose_size(capacity):
    required, limit = capacity.required_bytes, capacity.limit_bytes
    size = required
    if size is None:
        size = DEFAULT_SIZE if limit is None else min(DEFAULT_SIZE, limit)
    if size == 0 or limit == 0:
        why = "a volume has at least 1 byte"
    elif limit is not None and size > limit:
        why = "no size is in this range"
    elif size > MAX_SIZE:
        why = "a volume has at most 1 PiB"
    else:
        return size
    asked = f"size at least {shown(required)}, at most {shown(limit)}"
    raise refused(ErrorKind.OUT_OF_RANGE, f"{asked}: {why}")


def shown(bound):
    return "open" if bound is None else f"{bound} bytes"


def refuse_other(found, request, uses):
    """Refuses a request whose name is a volume's that was created with other arguments."""
    required, limit = request.capacity.required_bytes, request.capacity.limit_bytes
    size = found["size"]
    if found["name"] != request.name:
        has = "the name of another volume with the same digest"
    elif (required is not None and size < required) or (limit is not None and size > limit):
        has = f"a size of {size} bytes"
    elif found["uses"] != uses:
        has = f"the capabilities {', '.join(found['uses'])}"
    else:
        return
    raise refused(ErrorKind.ALREADY_EXISTS, f"the volume {request.name!r} exists, with {has}")


def volume(handle, size):
    return Volume(handle, size, [], [], ConnectionInfo("none", 1, []))


def key_of(handle):
    return f"volume/{handle}"


def read(handle):
    """The entry of a volume. A handle longer than any of ours is nobody's, and may be longer than a key."""
    if len(handle.encode()) > MAX_TEXT:
        return None
    try:
        return state.get(key_of(handle))
    except Err as error:
        raise from_state(error.value)


def decode(handle, entry):
    try:
        record = json.loads(entry.value)
        return {"name": str(record["name"]), "size": int(record["size"]), "uses": list(record["uses"])}
    except (ValueError, KeyError, TypeError):
        raise refused(ErrorKind.INTERNAL, f"the state of the volume {handle!r} is not readable")


def commit(change):
    """Makes a change; False when another call was faster."""
    try:
        state.commit([change])
        return True
    except Err as error:
        if isinstance(error.value, state.StateError_Conflict):
            return False
        raise from_state(error.value)


def from_state(error):
    """A commit that failed did nothing, so neither did the call."""
    if isinstance(error, state.StateError_Full):
        kind = ErrorKind.RESOURCE_EXHAUSTED
    elif isinstance(error, state.StateError_Unavailable):
        kind = ErrorKind.UNAVAILABLE
    else:
        kind = ErrorKind.INTERNAL
    return refused(kind, f"the state refused: {error}")


def busy(handle):
    return refused(ErrorKind.ABORTED, f"{ATTEMPTS} other calls changed the volume {handle!r} at the same time")


def refused(kind, message):
    """A failure of a call that had no effect."""
    return Err(StorageError(kind, message, None, Finality.FINAL))
