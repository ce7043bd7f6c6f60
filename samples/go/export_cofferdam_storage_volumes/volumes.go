// Package export_cofferdam_storage_volumes exports the interface volumes.
package export_cofferdam_storage_volumes

import (
	types "wit_component/cofferdam_storage_types"
	volumes "wit_component/cofferdam_storage_volumes"
	"wit_component/driver"

	wit "go.bytecodealliance.org/pkg/wit/types"
)

// Create creates an empty volume.
func Create(request types.CreateRequest) wit.Result[types.Volume, types.StorageError] {
	defer driver.LogPanic()
	return driver.Result(driver.CreateVolume(request))
}

// Delete deletes a volume.
func Delete(handle string) wit.Result[wit.Unit, types.StorageError] {
	defer driver.LogPanic()
	return driver.Result(wit.Unit{}, driver.DeleteVolume(handle))
}

// Validate validates capabilities of a volume.
func Validate(request volumes.ValidateRequest) wit.Result[volumes.Validation, types.StorageError] {
	defer driver.LogPanic()
	return driver.Result(driver.ValidateVolume(request))
}
