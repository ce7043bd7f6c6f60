package export_cofferdam_storage_volumes

import (
	"encoding/json"
	"fmt"

	"wit_component/cofferdam_storage_state"
	"wit_component/cofferdam_storage_types"

	wit "go.bytecodealliance.org/pkg/wit/types"
)

// A failed call, as Go passes failures on.
type refusal struct{ failure }

func (r refusal) Error() string { return r.Message }

// refused is the failure of a call that had no effect.
func refused(kind cofferdam_storage_types.ErrorKind, format string, arguments ...any) error {
	return refusal{failure{
		Kind:         kind,
		Message:      fmt.Sprintf(format, arguments...),
		RetryAfterMs: wit.None[uint64](),
		Finality:     cofferdam_storage_types.Finality_Final,
	}}
}

// result is what the generated code expects.
func result[T any](value T, err error) wit.Result[T, failure] {
	switch err := err.(type) {
	case nil:
		return wit.Ok[T, failure](value)
	case refusal:
		return wit.Err[T](err.failure)
	default:
		return wit.Err[T](failure{
			Kind:         cofferdam_storage_types.ErrorKind_Internal,
			Message:      err.Error(),
			RetryAfterMs: wit.None[uint64](),
			Finality:     cofferdam_storage_types.Finality_Unknown,
		})
	}
}

func key(handle string) string { return "volume/" + handle }

// read returns a volume with the version that a change of it replaces, or nothing. A handle longer than any of ours is
// nobody's, and may be longer than a key.
func read(handle string) (*record, uint64, error) {
	if len(handle) > maxText {
		return nil, 0, nil
	}
	got := cofferdam_storage_state.Get(key(handle))
	if got.IsErr() {
		return nil, 0, fromState(got.Err())
	}
	if !got.Ok().IsSome() {
		return nil, 0, nil
	}
	entry := got.Ok().Some()
	var found *record
	if err := json.Unmarshal(entry.Value, &found); err != nil || found == nil || found.Size == 0 {
		return nil, 0, refused(cofferdam_storage_types.ErrorKind_Internal, "the state of the volume %q is not readable", handle)
	}
	return found, entry.Version, nil
}

// commit makes a change; false when another call was faster.
func commit(one change) (bool, error) {
	done := cofferdam_storage_state.Commit([]change{one})
	if !done.IsErr() {
		return true, nil
	}
	if done.Err().Tag() == cofferdam_storage_state.StateError_Conflict {
		return false, nil
	}
	return false, fromState(done.Err())
}

// fromState: a read or commit that failed did nothing, so neither did the call.
func fromState(err cofferdam_storage_state.StateError) error {
	switch err.Tag() {
	case cofferdam_storage_state.StateError_Full:
		full := err.Full()
		return refused(cofferdam_storage_types.ErrorKind_ResourceExhausted,
			"the state would hold %d bytes; its limit is %d", full.Given, full.Limit)
	case cofferdam_storage_state.StateError_Unavailable:
		return refused(cofferdam_storage_types.ErrorKind_Unavailable, "the state cannot be used: %s", err.Unavailable())
	default:
		return refused(cofferdam_storage_types.ErrorKind_Internal, "the state refused: reason %d", err.Tag())
	}
}

func busy(handle string) error {
	return refused(cofferdam_storage_types.ErrorKind_Aborted,
		"%d other calls changed the volume %q at the same time", attempts, handle)
}
