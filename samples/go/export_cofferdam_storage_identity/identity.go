// Package export_cofferdam_storage_identity exports the interface identity.
package export_cofferdam_storage_identity

import (
	identity "wit_component/cofferdam_storage_identity"
	types "wit_component/cofferdam_storage_types"
	"wit_component/driver"

	wit "go.bytecodealliance.org/pkg/wit/types"
)

// Describe describes the driver.
func Describe() wit.Result[identity.Description, types.StorageError] {
	return driver.Result(identity.Description{
		Name:           driver.Name,
		Version:        driver.Version,
		Placement:      identity.Placement_Central,
		VolumesPerNode: wit.None[uint32](),
	}, nil)
}

// Probe returns that the driver is ready.
func Probe() wit.Result[identity.Readiness, types.StorageError] {
	return driver.Result(identity.MakeReadinessReady(), nil)
}
