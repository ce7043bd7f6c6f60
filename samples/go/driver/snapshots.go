package driver

import (
	"strings"

	ambient "wit_component/cofferdam_storage_ambient"
	snapshots "wit_component/cofferdam_storage_snapshots"
	state "wit_component/cofferdam_storage_state"
	types "wit_component/cofferdam_storage_types"

	wit "go.bytecodealliance.org/pkg/wit/types"
)

const maxPage = 1000

// CreateSnapshot creates a snapshot, or returns the existing one.
func CreateSnapshot(request snapshots.SnapshotRequest) (snapshot types.Snapshot, err error) {
	handle, err := handleFromName("snap", request.Name)
	if err != nil {
		return snapshot, err
	}
	if err := checkParameters(request.Parameters); err != nil {
		return snapshot, err
	}
	key, source := snapshotPrefix+handle, volumePrefix+request.Source
	found, err := findOrCreate(key, request.Name, source, func() (record, error) {
		volume, err := require(source)
		return record{
			Name:        request.Name,
			Size:        volume.Size,
			Source:      source,
			CreatedAtMs: ambient.NowMs(),
			Owner:       optionToPointer(request.Owner),
		}, err
	})
	return newSnapshot(key, found), err
}

// DeleteSnapshot deletes a snapshot. It succeeds if the snapshot does not exist.
func DeleteSnapshot(handle string) error {
	return deleteRecord(snapshotPrefix + handle)
}

// GetSnapshot returns a snapshot.
func GetSnapshot(handle string) (types.Snapshot, error) {
	key := snapshotPrefix + handle
	found, err := require(key)
	return newSnapshot(key, found), err
}

// ListSnapshots lists a page of the snapshots, or of the snapshots of one volume.
func ListSnapshots(source, after wit.Option[string], limit wit.Option[uint32]) (page snapshots.SnapshotPage, err error) {
	lastKey := wit.None[string]()
	if after.IsSome() {
		key, err := keyOfToken(after.Some())
		if err != nil {
			return page, err
		}
		lastKey = wit.Some(key)
	}
	scanned := state.Scan(snapshotPrefix, lastKey, min(limit.SomeOr(maxPage), maxPage))
	if scanned.IsErr() {
		return page, fromStateError(scanned.Err())
	}
	entries := scanned.Ok().Entries
	for _, entry := range entries {
		found, err := decode(entry.Key, entry.Value)
		if err != nil {
			return page, err
		}
		if !source.IsSome() || found.Source == volumePrefix+source.Some() {
			page.Snapshots = append(page.Snapshots, newSnapshot(entry.Key, found))
		}
	}
	// A page of one volume's snapshots may have fewer entries than the limit, or none, and still have a next page.
	if scanned.Ok().More {
		page.Next = wit.Some(token(entries[len(entries)-1].Key))
	}
	return page, nil
}

func newSnapshot(key string, found record) types.Snapshot {
	return types.Snapshot{
		Handle:      strings.TrimPrefix(key, snapshotPrefix),
		Source:      strings.TrimPrefix(found.Source, volumePrefix),
		SizeBytes:   wit.Some(found.Size),
		CreatedAtMs: found.CreatedAtMs,
		Ready:       true,
		Owner:       pointerToOption(found.Owner),
	}
}

// token is the token of the page after a key. The digest distinguishes it from other text.
func token(key string) string {
	return digest(key)[:8] + "." + key
}

func keyOfToken(after string) (string, error) {
	_, key, _ := strings.Cut(after, ".")
	if after != token(key) {
		return "", failure(types.ErrorKind_Aborted, "no listing returned the token %.128q", after)
	}
	return key, nil
}

func optionToPointer[T any](value wit.Option[T]) *T {
	if !value.IsSome() {
		return nil
	}
	some := value.Some()
	return &some
}

func pointerToOption[T any](value *T) wit.Option[T] {
	if value == nil {
		return wit.None[T]()
	}
	return wit.Some(*value)
}
