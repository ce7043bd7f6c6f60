// A small storage driver: its volumes are entries of the host's `state`, and hold no data.
//
// Every call runs in a fresh instance: module variables are constants, what has to last goes into `state`. Whatever is thrown
// and is not a storage-error ends the call as a trap, so what can fail is answered on purpose.
//
// Sizes and versions are BigInt: as numbers, those above 2^53 would silently be others.

import { write as log } from 'cofferdam:storage/log@0.1.0';
import { get, commit as commitChanges } from 'cofferdam:storage/state@0.1.0';

const NAME = 'javascript.samples.cofferdam.dev';
const VERSION = '0.1.0';
const PREFIX = 'js-';
const DEFAULT_SIZE = 1n << 30n;
const MAX_SIZE = 1n << 50n;
/** CSI's limit for names and ids, in bytes. */
const MAX_TEXT = 128;
/** How often a decision is made anew after a foreign write of the same volume. */
const ATTEMPTS = 64;

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
    const handle = handleOf(request.name);
    refuseParameters('parameter', request.parameters);
    refuseParameters('mutable parameter', request.mutableParameters);
    const uses = usesOf(request.capabilities);
    for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
      const entry = read(handle);
      if (entry !== undefined) {
        const found = decode(handle, entry);
        refuseOther(found, request, uses);
        return volume(handle, found.size);
      }
      const size = chooseSize(request.capacity);
      const value = encode({ name: request.name, size, uses });
      if (commit({ tag: 'put', val: { key: keyOf(handle), value, precondition: { tag: 'absent' } } })) {
        log('info', 'volume created', [['handle', handle], ['bytes', `${size}`]]);
        return volume(handle, size);
      }
    }
    throw busy(handle);
  },

  delete(handle) {
    for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
      const entry = read(handle);
      if (entry === undefined) return;
      if (commit({ tag: 'remove', val: { key: keyOf(handle), version: entry.version } })) {
        log('info', 'volume deleted', [['handle', handle]]);
        return;
      }
    }
    throw busy(handle);
  },

  validate(request) {
    const uses = usesOf(request.capabilities);
    const entry = read(request.handle);
    if (entry === undefined) {
      throw refused('not-found', `there is no volume ${JSON.stringify(request.handle.slice(0, MAX_TEXT))}`);
    }
    const createdFor = decode(request.handle, entry).uses;
    const other = uses.find((use) => !createdFor.includes(use));
    if (other === undefined) return { tag: 'confirmed' };
    const val = `${other} is not among the ways the volume was created for: ${createdFor.join(', ')}`;
    return { tag: 'refused', val };
  },
};

const utf8 = (text) => new TextEncoder().encode(text);

/** The handle of a name: readable while that fits, the same for the same name. */
function handleOf(name) {
  // A text's length in JavaScript is not its length in bytes.
  const bytes = utf8(name);
  if (bytes.length === 0 || bytes.length > MAX_TEXT || /[\u0000-\u001f\u007f-\u009f]/.test(name)) {
    const expected = `expected 1 to ${MAX_TEXT} without control characters`;
    throw refused('invalid-argument', `the volume name has ${bytes.length} bytes; ${expected}`);
  }
  if (PREFIX.length + bytes.length <= MAX_TEXT) return PREFIX + name;
  return `${PREFIX}fnv-${fnv1a(bytes).toString(16).padStart(32, '0')}`;
}

/** FNV-1a with 128 bits. Two names may share a digest: the volume keeps its name, so a stranger is refused. */
function fnv1a(bytes) {
  const prime = 0x0000000001000000000000000000013bn;
  return bytes.reduce(
    (hash, byte) => BigInt.asUintN(128, (hash ^ BigInt(byte)) * prime),
    0x6c62272e07bb014262b821756295c58dn,
  );
}

function refuseParameters(what, pairs) {
  for (const [key] of pairs) {
    throw refused('invalid-argument', `unknown ${what} ${JSON.stringify(key)}: this driver has none`);
  }
}

/** Every way of use, written out, sorted: two requests with the same ways have the same list. */
function usesOf(capabilities) {
  if (capabilities.length === 0) {
    throw refused('invalid-argument', 'no volume capability was given; expected at least one');
  }
  return [...new Set(capabilities.map(useOf))].sort();
}

function useOf({ mode, access }) {
  if (access.tag === 'block') return `${mode} block`;
  const { fsType, mountFlags, mountGroup } = access.val;
  // JSON keeps an absent text and an empty one, and one flag with a comma and two flags, apart.
  return `${mode} filesystem ${JSON.stringify([fsType ?? null, mountFlags, mountGroup ?? null])}`;
}

function chooseSize({ requiredBytes: required, limitBytes: limit }) {
  const preferred = limit !== undefined && limit < DEFAULT_SIZE ? limit : DEFAULT_SIZE;
  const size = required ?? preferred;
  let why;
  if (size === 0n || limit === 0n) why = 'a volume has at least 1 byte';
  else if (limit !== undefined && size > limit) why = 'no size is in this range';
  else if (size > MAX_SIZE) why = 'a volume has at most 1 PiB';
  else return size;
  const show = (bound) => (bound === undefined ? 'open' : `${bound} bytes`);
  throw refused('out-of-range', `size at least ${show(required)}, at most ${show(limit)}: ${why}`);
}

/** Refuses a request whose name is a volume's that was created with other arguments. */
function refuseOther(found, request, uses) {
  const { requiredBytes: required, limitBytes: limit } = request.capacity;
  let has;
  if (found.name !== request.name) has = 'the name of another volume with the same digest';
  else if ((required !== undefined && found.size < required) || (limit !== undefined && found.size > limit)) {
    has = `a size of ${found.size} bytes`;
  } else if (found.uses.join('\n') !== uses.join('\n')) has = `the capabilities ${found.uses.join(', ')}`;
  else return;
  throw refused('already-exists', `the volume ${JSON.stringify(request.name)} exists, with ${has}`);
}

function volume(handle, size) {
  return {
    handle,
    capacityBytes: size,
    context: [],
    topology: [],
    connectionInfo: { kind: 'none', version: 1, fields: [] },
  };
}

const keyOf = (handle) => `volume/${handle}`;

/** A record as it is kept; the size as text, because JSON has no exact numbers. */
const encode = (record) => utf8(JSON.stringify({ ...record, size: `${record.size}` }));

function decode(handle, entry) {
  try {
    const { name, size, uses } = JSON.parse(new TextDecoder().decode(entry.value));
    if (Array.isArray(uses)) return { name, size: BigInt(size), uses };
  } catch {
    // What follows says the same of every unreadable record.
  }
  throw refused('internal', `the state of the volume ${JSON.stringify(handle)} is not readable`);
}

/** The entry of a volume. A handle longer than any of ours is nobody's, and may be longer than a key. */
function read(handle) {
  if (utf8(handle).length > MAX_TEXT) return undefined;
  try {
    return get(keyOf(handle));
  } catch (error) {
    throw fromState(error);
  }
}

/** Makes a change; false when another call was faster. */
function commit(change) {
  try {
    commitChanges([change]);
    return true;
  } catch (error) {
    if (error.payload?.tag === 'conflict') return false;
    throw fromState(error);
  }
}

/** A commit that failed did nothing, so neither did the call. What is no answer of the state is a defect, and stays one. */
function fromState(error) {
  const tag = error.payload?.tag;
  if (tag === undefined) return error;
  const kind = { full: 'resource-exhausted', unavailable: 'unavailable' }[tag] ?? 'internal';
  return refused(kind, `the state refused: ${tag}`);
}

const busy = (handle) =>
  refused('aborted', `${ATTEMPTS} other calls changed the volume ${JSON.stringify(handle)} at the same time`);

/** A failure of a call that had no effect. */
const refused = (kind, message) => ({ kind, message, retryAfterMs: undefined, finality: 'final' });
