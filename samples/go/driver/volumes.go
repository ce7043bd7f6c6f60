package driver

import (
	"slices"
	"strings"

	types "wit_component/cofferdam_storage_types"
	volumes "wit_component/cofferdam_storage_volumes"

	wit "go.bytecodealliance.org/pkg/wit/types"
)

// CreateVolume creates an empty volume, or returns the existing one.
func CreateVolume(request types.CreateRequest) (types.Volume, error) {
	return createVolume(request, "")
}

// CloneVolume creates a volume from a volume, or returns the existing one.
func CloneVolume(request types.CreateRequest, source string) (types.Volume, error) {
	return createVolume(request, volumePrefix+source)
}

// RestoreSnapshot creates a volume from a snapshot, or returns the existing one.
func RestoreSnapshot(request types.CreateRequest, source string) (types.Volume, error) {
	return createVolume(request, snapshotPrefix+source)
}

func createVolume(request types.CreateRequest, source string) (volume types.Volume, err error) {
	handle, err := handleFromName("vol", request.Name)
	if err != nil {
		return volume, err
	}
	if err := checkParameters(slices.Concat(request.Parameters, request.MutableParameters)); err != nil {
		return volume, err
	}
	capabilities, err := canonicalCapabilities(request.Capabilities)
	if err != nil {
		return volume, err
	}
	key := volumePrefix + handle
	found, err := findOrCreate(key, request.Name, source, func() (record, error) {
		sourceSize := wit.None[uint64]()
		if source != "" {
			found, err := require(source)
			if err != nil {
				return record{}, err
			}
			sourceSize = wit.Some(found.Size)
		}
		size, err := chooseSize(request.Capacity, sourceSize)
		return record{Name: request.Name, Size: size, Source: source, Capabilities: capabilities}, err
	})
	if err != nil {
		return volume, err
	}
	capacity := request.Capacity
	if found.Size < capacity.RequiredBytes.SomeOr(found.Size) || found.Size > capacity.LimitBytes.SomeOr(found.Size) {
		return volume, alreadyExists(key, "a size of %d bytes", found.Size)
	}
	if !slices.Equal(found.Capabilities, capabilities) {
		return volume, alreadyExists(key, "the capabilities %s", strings.Join(found.Capabilities, ", "))
	}
	return types.Volume{
		Handle:         handle,
		CapacityBytes:  wit.Some(found.Size),
		ConnectionInfo: wit.Some(types.ConnectionInfo{Kind: "none", Version: 1}),
	}, nil
}

// DeleteVolume deletes a volume. It succeeds if the volume does not exist.
func DeleteVolume(handle string) error {
	return deleteRecord(volumePrefix + handle)
}

// ValidateVolume tells whether a volume has the capabilities.
func ValidateVolume(request volumes.ValidateRequest) (validation volumes.Validation, err error) {
	capabilities, err := canonicalCapabilities(request.Capabilities)
	if err != nil {
		return validation, err
	}
	found, err := require(volumePrefix + request.Handle)
	if err != nil {
		return validation, err
	}
	if err := checkParameters(slices.Concat(request.Parameters, request.MutableParameters)); err != nil {
		return volumes.MakeValidationRefused(err.Error()), nil
	}
	for _, capability := range capabilities {
		if !slices.Contains(found.Capabilities, capability) {
			return volumes.MakeValidationRefused("the volume was not created for " + capability), nil
		}
	}
	return volumes.MakeValidationConfirmed(), nil
}
