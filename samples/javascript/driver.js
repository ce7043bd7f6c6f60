// A small storage driver. Its volumes and snapshots are entries of the host's `state` and hold no data.
//
// Every call runs in a fresh instance: module variables are constants. Throwing anything but a storage-error is a trap.
//
// Sizes, times and versions are BigInt. A number would round those above 2^53.

import { nowMs } from 'cofferdam:storage/ambient@0.1.0';
import { write as log } from 'cofferdam:storage/log@0.1.0';
import { commit as commitState, get as getState, scan as scanState } from 'cofferdam:storage/state@0.1.0';

const NAME = 'javascript.samples.cofferdam.dev';
const VERSION = '0.1.0';
const DEFAULT_SIZE = 1n << 30n;
const MAX_SIZE = 1n << 50n;
/** The contract's limit for names, in bytes. */
const MAX_NAME = 128;
/** Longer names have a digest in their handle, so that page tokens stay below 128 bytes. */
const MAX_READABLE_NAME = 64;
/** The contract's limit for keys of `state`, in bytes. */
const MAX_KEY = 512;
/** Key prefixes in `state`. The rest of a key is the handle. */
const VOLUME = 'volume/';
const SNAPSHOT = 'snapshot/';
const MAX_PAGE = 1000;
/** Attempts to commit a change. An attempt fails if another call changes the same key between the read and the commit. */
const MAX_ATTEMPTS = 64;

export const identity = {
  describe() {
    return {
      name: NAME,
      version: VERSION,
      topologyKeys: [],
      placement: 'central',
      volumesPerNode: undefined,
      features: [],
    };
  },

  probe() {
    return { tag: 'ready' };
  },
};

export const volumes = {
  create(request) {
    return createVolume(request, undefined);
  },

  delete(handle) {
    deleteRecord(VOLUME + handle);
  },

  validate(request) {
    const capabilities = canonicalCapabilities(request.capabilities);
    const record = requireRecord(VOLUME + request.handle);
    const unknown = unknownParameter([...request.parameters, ...request.mutableParameters]);
    if (unknown !== undefined) return { tag: 'refused', val: unknown };
    const missing = capabilities.find((capability) => !record.capabilities.includes(capability));
    if (missing !== undefined) return { tag: 'refused', val: `the volume was not created for ${missing}` };
    return { tag: 'confirmed' };
  },
};

export const cloning = {
  createFromVolume(request, source) {
    return createVolume(request, VOLUME + source);
  },
};

export const restoring = {
  createFromSnapshot(request, source) {
    return createVolume(request, SNAPSHOT + source);
  },
};

export const snapshots = {
  create(request) {
    const key = SNAPSHOT + handleFromName('snap', request.name);
    const source = VOLUME + request.source;
    checkParameters(request.parameters);
    const record = findOrCreate(key, request.name, source, () => ({
      name: request.name,
      size: requireRecord(source).size,
      source,
      createdAtMs: nowMs(),
      owner: request.owner,
    }));
    return snapshot(key, record);
  },

  delete(handle) {
    deleteRecord(SNAPSHOT + handle);
  },

  get(handle) {
    const key = SNAPSHOT + handle;
    return snapshot(key, requireRecord(key));
  },

  list(source, after, limit) {
    const lastKey = after === undefined ? undefined : keyOfToken(after);
    const page = callState(() => scanState(SNAPSHOT, lastKey, Math.min(limit ?? MAX_PAGE, MAX_PAGE)));
    // A page of one volume's snapshots may have fewer entries than the limit, or none, and still have a next page.
    const snapshots = page.entries
      .map(({ key, value }) => ({ key, record: decode(key, value) }))
      .filter(({ record }) => source === undefined || record.source === VOLUME + source)
      .map(({ key, record }) => snapshot(key, record));
    return { snapshots, next: page.more ? token(page.entries.at(-1).key) : undefined };
  },
};

function createVolume(request, source) {
  const key = VOLUME + handleFromName('vol', request.name);
  checkParameters([...request.parameters, ...request.mutableParameters]);
  const capabilities = canonicalCapabilities(request.capabilities);
  const record = findOrCreate(key, request.name, source, () => {
    const sourceSize = source === undefined ? undefined : requireRecord(source).size;
    return { name: request.name, size: chooseSize(request.capacity, sourceSize), source, capabilities };
  });
  const { requiredBytes: required = record.size, limitBytes: limit = record.size } = request.capacity;
  if (record.size < required || record.size > limit) throw alreadyExists(key, `a size of ${record.size} bytes`);
  if (record.capabilities.join('\n') !== capabilities.join('\n')) {
    throw alreadyExists(key, `the capabilities ${record.capabilities.join(', ')}`);
  }
  return {
    handle: handleOfKey(key),
    capacityBytes: record.size,
    context: [],
    topology: [],
    connectionInfo: { kind: 'none', version: 1, fields: [] },
  };
}

function snapshot(key, { source, size, createdAtMs, owner }) {
  return {
    handle: handleOfKey(key),
    source: handleOfKey(source),
    sizeBytes: size,
    createdAtMs,
    ready: true,
    group: undefined,
    owner,
  };
}

const utf8 = (text) => new TextEncoder().encode(text);

/** Returns the handle of a name: always the same one, and readable if the name is short. */
function handleFromName(prefix, name) {
  // The length of a JavaScript string is not its length in bytes.
  const length = utf8(name).length;
  if (length === 0 || length > MAX_NAME || /[\u0000-\u001f\u007f-\u009f]/.test(name)) {
    const expected = `expected 1 to ${MAX_NAME} without control characters`;
    throw failure('invalid-argument', `the name has ${length} bytes; ${expected}`);
  }
  return length <= MAX_READABLE_NAME ? `${prefix}-${name}` : `${prefix}-fnv-${digest(name)}`;
}

const handleOfKey = (key) => key.slice(key.indexOf('/') + 1);

/** FNV-1a with 128 bits. Two names with one digest have one handle: records have names, so the second is rejected. */
function digest(text) {
  const prime = 0x0000000001000000000000000000013bn;
  const hash = utf8(text).reduce(
    (hash, byte) => BigInt.asUintN(128, (hash ^ BigInt(byte)) * prime),
    0x6c62272e07bb014262b821756295c58dn,
  );
  return hash.toString(16).padStart(32, '0');
}

const unknownParameter = (parameters) =>
  parameters.length === 0
    ? undefined
    : `unknown parameter ${JSON.stringify(parameters[0][0])}: this driver has none`;

function checkParameters(parameters) {
  const unknown = unknownParameter(parameters);
  if (unknown !== undefined) throw failure('invalid-argument', unknown);
}

/** Returns the capabilities as sorted strings: the order of a request has no meaning. */
function canonicalCapabilities(capabilities) {
  if (capabilities.length === 0) {
    throw failure('invalid-argument', 'no volume capability was given; expected at least one');
  }
  return [...new Set(capabilities.map(canonicalCapability))].sort();
}

function canonicalCapability({ mode, access }) {
  if (access.tag === 'block') return `${mode} block`;
  const { fsType, mountFlags, mountGroup } = access.val;
  // JSON distinguishes an absent text from an empty one, and one flag with a comma from two flags.
  return `${mode} filesystem ${JSON.stringify([fsType ?? null, mountFlags, mountGroup ?? null])}`;
}

/** Returns the required size, or the default: the size of the source, or `DEFAULT_SIZE`. */
function chooseSize({ requiredBytes: required, limitBytes: limit = MAX_SIZE }, sourceSize) {
  const size = required ?? sourceSize ?? (limit < DEFAULT_SIZE ? limit : DEFAULT_SIZE);
  const minimum = sourceSize ?? 1n;
  const maximum = limit < MAX_SIZE ? limit : MAX_SIZE;
  if (size < minimum || size > maximum) {
    const message = `the size is ${size} bytes; the minimum is ${minimum}, the maximum ${maximum}`;
    throw failure('out-of-range', message);
  }
  return size;
}

/** Returns the token of the page after a key. The digest distinguishes it from other text. */
const token = (key) => `${digest(key).slice(0, 8)}.${key}`;

function keyOfToken(after) {
  const key = after.slice(after.indexOf('.') + 1);
  if (after !== token(key)) throw failure('aborted', `no listing returned the token ${shorten(after)}`);
  return key;
}

/** Returns the record of a name, and creates it if it does not exist. */
function findOrCreate(key, name, source, newRecord) {
  for (let attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
    const entry = read(key);
    if (entry !== undefined) {
      const record = decode(key, entry.value);
      if (record.name !== name) throw alreadyExists(key, `the name ${JSON.stringify(record.name)}`);
      if (record.source !== source) throw alreadyExists(key, `the source ${record.source ?? 'none'}`);
      return record;
    }
    const record = newRecord();
    if (commit({ tag: 'put', val: { key, value: encode(record), precondition: { tag: 'absent' } } })) {
      log('info', 'created', [['key', key], ['bytes', `${record.size}`]]);
      return record;
    }
  }
  throw tooManyConflicts(key);
}

function deleteRecord(key) {
  for (let attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
    const entry = read(key);
    if (entry === undefined) return;
    if (commit({ tag: 'remove', val: { key, version: entry.version } })) {
      log('info', 'deleted', [['key', key]]);
      return;
    }
  }
  throw tooManyConflicts(key);
}

/** Returns the record of a key that must exist. */
function requireRecord(key) {
  const entry = read(key);
  if (entry === undefined) throw failure('not-found', `${shorten(key)} does not exist`);
  return decode(key, entry.value);
}

/** Handles in requests have any length. */
const read = (key) => (utf8(key).length > MAX_KEY ? undefined : callState(() => getState(key)));

/** Encodes a record. BigInt is stored as text: a JSON number would round it. */
const encode = (record) =>
  utf8(JSON.stringify(record, (_, value) => (typeof value === 'bigint' ? `${value}` : value)));

/** Decodes the record of a volume or snapshot. Only volumes have `capabilities`, only snapshots `createdAtMs` and `owner`. */
function decode(key, value) {
  try {
    const { size, createdAtMs = 0, capabilities = [], ...rest } = JSON.parse(new TextDecoder().decode(value));
    return { ...rest, size: BigInt(size), createdAtMs: BigInt(createdAtMs), capabilities };
  } catch {
    throw failure('internal', `the record of ${key} is not readable`, 'unknown');
  }
}

/** Commits a change. Returns false if another call has changed the key first. */
function commit(change) {
  try {
    commitState([change]);
    return true;
  } catch (error) {
    if (error.payload?.tag === 'conflict') return false;
    throw storageError(error);
  }
}

function callState(call) {
  try {
    return call();
  } catch (error) {
    throw storageError(error);
  }
}

function storageError(error) {
  // Without a payload it is a defect of this driver. Thrown again, it is a trap.
  if (error.payload === undefined) return error;
  const { tag, val } = error.payload;
  switch (tag) {
    case 'full':
      return failure('resource-exhausted', `the state would have ${val.given} bytes; its limit is ${val.limit}`);
    case 'value-size':
      return failure('resource-exhausted', `the record would have ${val.given} bytes; its limit is ${val.limit}`);
    case 'unavailable':
      // An earlier call of the same name may have had an effect, which this call could not look up.
      return failure('unavailable', `the state is unavailable: ${val}`, 'unknown');
    default:
      return failure('internal', `the state failed: ${tag}`, 'unknown');
  }
}

const shorten = (text) => JSON.stringify(text.slice(0, MAX_NAME));

const alreadyExists = (key, difference) => failure('already-exists', `${key} exists with ${difference}`);

const tooManyConflicts = (key) =>
  failure('aborted', `other calls have changed ${key} ${MAX_ATTEMPTS} times during this call`);

const failure = (kind, message, finality = 'final') => ({ kind, message, retryAfterMs: undefined, finality });
