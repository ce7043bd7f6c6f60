// Package export_cofferdam_storage_restoring exports the interface restoring.
package export_cofferdam_storage_restoring

import (
	types "wit_component/cofferdam_storage_types"
	"wit_component/driver"

	wit "go.bytecodealliance.org/pkg/wit/types"
)

// CreateFromSnapshot creates a volume from a snapshot.
func CreateFromSnapshot(request types.CreateRequest, source string) wit.Result[types.Volume, types.StorageError] {
	defer driver.LogPanic()
	return driver.Result(driver.RestoreSnapshot(request, source))
}
