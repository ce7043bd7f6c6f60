// Package export_cofferdam_storage_cloning exports the interface cloning.
package export_cofferdam_storage_cloning

import (
	types "wit_component/cofferdam_storage_types"
	"wit_component/driver"

	wit "go.bytecodealliance.org/pkg/wit/types"
)

// CreateFromVolume creates a volume from a volume.
func CreateFromVolume(request types.CreateRequest, source string) wit.Result[types.Volume, types.StorageError] {
	defer driver.LogPanic()
	return driver.Result(driver.CloneVolume(request, source))
}
