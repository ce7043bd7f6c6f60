// Package driver is a small storage driver. Its volumes and snapshots are entries of the host's `state` and hold no data. The
// packages export_… export its functions under the names that the generated bindings expect.
//
// Every call runs in a fresh instance: package variables are constants. A panic is a trap.
package driver

import (
	"fmt"

	hostlog "wit_component/cofferdam_storage_log"
	types "wit_component/cofferdam_storage_types"

	wit "go.bytecodealliance.org/pkg/wit/types"
)

const (
	// Name is the driver's name, as in the provisioner of a StorageClass.
	Name = "go.samples.cofferdam.dev"
	// Version is the driver's version.
	Version = "0.1.0"
)

// storageError is an error of the contract.
type storageError struct {
	types.StorageError
}

func (e storageError) Error() string { return e.Message }

// failure is the error of a call without an effect.
func failure(kind types.ErrorKind, format string, arguments ...any) error {
	return storageError{types.StorageError{
		Kind:         kind,
		Message:      fmt.Sprintf(format, arguments...),
		RetryAfterMs: wit.None[uint64](),
		Finality:     types.Finality_Final,
	}}
}

// unknownOutcome is the error of a call whose effect, or that of an earlier call of the same name, is unknown.
func unknownOutcome(kind types.ErrorKind, format string, arguments ...any) error {
	err := failure(kind, format, arguments...).(storageError)
	err.Finality = types.Finality_Unknown
	return err
}

// Result converts the result of a function to that of the bindings.
func Result[T any](value T, err error) wit.Result[T, types.StorageError] {
	switch err := err.(type) {
	case nil:
		return wit.Ok[T, types.StorageError](value)
	case storageError:
		return wit.Err[T](err.StorageError)
	default:
		return Result(value, unknownOutcome(types.ErrorKind_Internal, "%s", err))
	}
}

// LogPanic logs a panic that becomes a trap. Go's own message is not written anywhere.
func LogPanic() {
	if reason := recover(); reason != nil {
		log(hostlog.Level_Error, "panic", "reason", fmt.Sprint(reason))
		panic(reason)
	}
}

func log(level hostlog.Level, message, key, value string) {
	hostlog.Write(level, message, []wit.Tuple2[string, string]{{F0: key, F1: value}})
}
