// Package export_cofferdam_storage_identity says who the driver is. The generated code expects this name.
package export_cofferdam_storage_identity

import (
	"wit_component/cofferdam_storage_identity"
	"wit_component/cofferdam_storage_types"

	wit "go.bytecodealliance.org/pkg/wit/types"
)

const (
	name    = "go.samples.cofferdam.dev"
	version = "0.1.0"
)

// Describe says who the driver is.
func Describe() wit.Result[cofferdam_storage_identity.Description, cofferdam_storage_types.StorageError] {
	return wit.Ok[cofferdam_storage_identity.Description, cofferdam_storage_types.StorageError](
		cofferdam_storage_identity.Description{
			Name:           name,
			Version:        version,
			Placement:      cofferdam_storage_identity.Placement_Central,
			VolumesPerNode: wit.None[uint32](),
		})
}

// Probe tells that the driver is ready.
func Probe() wit.Result[cofferdam_storage_identity.Readiness, cofferdam_storage_types.StorageError] {
	return wit.Ok[cofferdam_storage_identity.Readiness, cofferdam_storage_types.StorageError](
		cofferdam_storage_identity.MakeReadinessReady())
}
