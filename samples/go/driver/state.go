package driver

import (
	"encoding/json"
	"fmt"

	hostlog "wit_component/cofferdam_storage_log"
	state "wit_component/cofferdam_storage_state"
	types "wit_component/cofferdam_storage_types"
)

const (
	// Key prefixes in `state`. The rest of a key is the handle.
	volumePrefix   = "volume/"
	snapshotPrefix = "snapshot/"
	// The contract's limit for keys of `state`, in bytes.
	maxKey = 512
	// Attempts to commit a change. An attempt fails if another call changes the same key between the read and the commit.
	maxAttempts = 64
)

// record is the stored record of a volume or snapshot.
type record struct {
	Name string
	Size uint64
	// Key of the volume or snapshot with the original content; empty for a volume that was created empty.
	Source string
	// Of a volume: canonical strings, sorted.
	Capabilities []string `json:",omitempty"`
	// Of a snapshot.
	CreatedAtMs uint64               `json:",omitempty"`
	Owner       *types.SnapshotOwner `json:",omitempty"`
}

// findOrCreate returns the record of a name, and creates it if it does not exist.
func findOrCreate(key, name, source string, newRecord func() (record, error)) (record, error) {
	for range maxAttempts {
		entry, err := read(key)
		if err != nil {
			return record{}, err
		}
		if entry != nil {
			found, err := decode(key, entry.Value)
			switch {
			case err != nil:
				return record{}, err
			case found.Name != name:
				return record{}, alreadyExists(key, "the name %q", found.Name)
			case found.Source != source:
				return record{}, alreadyExists(key, "the source %q", found.Source)
			}
			return found, nil
		}
		created, err := newRecord()
		if err != nil {
			return record{}, err
		}
		value, err := json.Marshal(created)
		if err != nil {
			return record{}, err
		}
		committed, err := commit(state.MakeChangePut(state.Put{
			Key: key, Value: value, Precondition: state.MakePreconditionAbsent(),
		}))
		if err != nil {
			return record{}, err
		}
		if committed {
			log(hostlog.Level_Info, "created", "key", key)
			return created, nil
		}
	}
	return record{}, tooManyConflicts(key)
}

func deleteRecord(key string) error {
	for range maxAttempts {
		entry, err := read(key)
		if err != nil || entry == nil {
			return err
		}
		committed, err := commit(state.MakeChangeRemove(state.Remove{
			Key: key, Version: entry.Version,
		}))
		if err != nil {
			return err
		}
		if committed {
			log(hostlog.Level_Info, "deleted", "key", key)
			return nil
		}
	}
	return tooManyConflicts(key)
}

// require returns the record of a key that must exist.
func require(key string) (record, error) {
	entry, err := read(key)
	if err != nil {
		return record{}, err
	}
	if entry == nil {
		return record{}, failure(types.ErrorKind_NotFound, "%.128q does not exist", key)
	}
	return decode(key, entry.Value)
}

// read returns the entry of a key, or nil.
func read(key string) (*state.Entry, error) {
	// Handles in requests have any length.
	if len(key) > maxKey {
		return nil, nil
	}
	entry := state.Get(key)
	if entry.IsErr() {
		return nil, fromStateError(entry.Err())
	}
	return optionToPointer(entry.Ok()), nil
}

func decode(key string, value []byte) (record, error) {
	var found record
	if err := json.Unmarshal(value, &found); err != nil || found.Size == 0 {
		return record{}, unknownOutcome(types.ErrorKind_Internal, "the record of %s is not readable", key)
	}
	return found, nil
}

// commit commits a change. It returns false if another call has changed the key first.
func commit(change state.Change) (bool, error) {
	version := state.Commit([]state.Change{change})
	if !version.IsErr() {
		return true, nil
	}
	if version.Err().Tag() == state.StateError_Conflict {
		return false, nil
	}
	return false, fromStateError(version.Err())
}

func fromStateError(err state.StateError) error {
	switch err.Tag() {
	case state.StateError_Full:
		return failure(types.ErrorKind_ResourceExhausted,
			"the state would have %d bytes; its limit is %d", err.Full().Given, err.Full().Limit)
	case state.StateError_ValueSize:
		return failure(types.ErrorKind_ResourceExhausted,
			"the record would have %d bytes; its limit is %d", err.ValueSize().Given, err.ValueSize().Limit)
	case state.StateError_Unavailable:
		// An earlier call of the same name may have had an effect, which this call could not look up.
		return unknownOutcome(types.ErrorKind_Unavailable, "the state is unavailable: %s", err.Unavailable())
	default:
		return unknownOutcome(types.ErrorKind_Internal, "the state failed with reason %d", err.Tag())
	}
}

func alreadyExists(key, format string, arguments ...any) error {
	return failure(types.ErrorKind_AlreadyExists, "%s exists with %s", key, fmt.Sprintf(format, arguments...))
}

func tooManyConflicts(key string) error {
	return failure(types.ErrorKind_Aborted, "other calls have changed %s %d times during this call", key, maxAttempts)
}
