// Package export_cofferdam_storage_volumes is a small storage driver: its volumes are entries of the host's `state`, and hold
// no data. The generated code expects the package's name.
//
// Every call runs in a fresh instance: package variables are constants, what has to last goes into `state`. A panic ends the
// call as a trap, so what can fail is answered on purpose.
package export_cofferdam_storage_volumes

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"wit_component/cofferdam_storage_log"
	"wit_component/cofferdam_storage_state"
	"wit_component/cofferdam_storage_types"
	"wit_component/cofferdam_storage_volumes"

	wit "go.bytecodealliance.org/pkg/wit/types"
)

type (
	failure    = cofferdam_storage_types.StorageError
	volume     = cofferdam_storage_types.Volume
	request    = cofferdam_storage_types.CreateRequest
	validation = cofferdam_storage_volumes.Validation
	change     = cofferdam_storage_state.Change
)

// How often a decision is made anew after a foreign write of the same volume.
const attempts = 64

// A volume as it is kept.
type record struct {
	Name string   `json:"name"`
	Size uint64   `json:"size"`
	Uses []string `json:"uses"`
}

// Create creates a volume or finds it.
func Create(asked request) wit.Result[volume, failure] {
	defer tellPanic()
	return result(create(asked))
}

// Delete deletes a volume; one that does not exist is a success.
func Delete(handle string) wit.Result[wit.Unit, failure] {
	defer tellPanic()
	return result(wit.Unit{}, remove(handle))
}

// Validate tells whether a volume can be used in some ways.
func Validate(asked cofferdam_storage_volumes.ValidateRequest) wit.Result[validation, failure] {
	defer tellPanic()
	return result(validate(asked))
}

func create(asked request) (volume, error) {
	handle, err := handleOf(asked.Name)
	if err != nil {
		return volume{}, err
	}
	if err := refuseParameters("parameter", asked.Parameters); err != nil {
		return volume{}, err
	}
	if err := refuseParameters("mutable parameter", asked.MutableParameters); err != nil {
		return volume{}, err
	}
	uses, err := usesOf(asked.Capabilities)
	if err != nil {
		return volume{}, err
	}
	for range attempts {
		found, _, err := read(handle)
		if err != nil {
			return volume{}, err
		}
		if found != nil {
			return answer(handle, found.Size), refuseOther(found, asked, uses)
		}
		size, err := chooseSize(asked.Capacity)
		if err != nil {
			return volume{}, err
		}
		value, err := json.Marshal(record{asked.Name, size, uses})
		if err != nil {
			return volume{}, err
		}
		put := cofferdam_storage_state.Put{Key: key(handle), Value: value, Precondition: cofferdam_storage_state.MakePreconditionAbsent()}
		done, err := commit(cofferdam_storage_state.MakeChangePut(put))
		if err != nil {
			return volume{}, err
		}
		if done {
			log(cofferdam_storage_log.Level_Info, "volume created", "handle", handle)
			return answer(handle, size), nil
		}
	}
	return volume{}, busy(handle)
}

func remove(handle string) error {
	for range attempts {
		found, version, err := read(handle)
		if err != nil || found == nil {
			return err
		}
		gone := cofferdam_storage_state.Remove{Key: key(handle), Version: version}
		done, err := commit(cofferdam_storage_state.MakeChangeRemove(gone))
		if err != nil {
			return err
		}
		if done {
			log(cofferdam_storage_log.Level_Info, "volume deleted", "handle", handle)
			return nil
		}
	}
	return busy(handle)
}

func validate(asked cofferdam_storage_volumes.ValidateRequest) (validation, error) {
	uses, err := usesOf(asked.Capabilities)
	if err != nil {
		return validation{}, err
	}
	found, _, err := read(asked.Handle)
	if err != nil {
		return validation{}, err
	}
	if found == nil {
		return validation{}, refused(cofferdam_storage_types.ErrorKind_NotFound, "there is no volume %.128q", asked.Handle)
	}
	for _, use := range uses {
		if !slices.Contains(found.Uses, use) {
			why := use + " is not among the ways the volume was created for: " + strings.Join(found.Uses, ", ")
			return cofferdam_storage_volumes.MakeValidationRefused(why), nil
		}
	}
	return cofferdam_storage_volumes.MakeValidationConfirmed(), nil
}

// refuseOther refuses a request whose name is a volume's that was created with other arguments.
func refuseOther(found *record, asked request, uses []string) error {
	var has string
	switch {
	case found.Name != asked.Name:
		has = "the name of another volume with the same digest"
	case !fits(found.Size, asked.Capacity):
		has = fmt.Sprintf("a size of %d bytes", found.Size)
	case !slices.Equal(found.Uses, uses):
		has = "the capabilities " + strings.Join(found.Uses, ", ")
	default:
		return nil
	}
	return refused(cofferdam_storage_types.ErrorKind_AlreadyExists, "the volume %q exists, with %s", asked.Name, has)
}

func answer(handle string, size uint64) volume {
	return volume{
		Handle:         handle,
		CapacityBytes:  wit.Some(size),
		ConnectionInfo: wit.Some(cofferdam_storage_types.ConnectionInfo{Kind: "none", Version: 1}),
	}
}

func log(level cofferdam_storage_log.Level, message, key, value string) {
	cofferdam_storage_log.Write(level, message, []wit.Tuple2[string, string]{{F0: key, F1: value}})
}

// tellPanic gives a panic's text to the host before the call ends: the runtime's own words have nowhere to go.
func tellPanic() {
	if reason := recover(); reason != nil {
		log(cofferdam_storage_log.Level_Error, "panic", "reason", fmt.Sprint(reason))
		panic(reason)
	}
}
