// Package export_cofferdam_storage_snapshots exports the interface snapshots.
package export_cofferdam_storage_snapshots

import (
	snapshots "wit_component/cofferdam_storage_snapshots"
	types "wit_component/cofferdam_storage_types"
	"wit_component/driver"

	wit "go.bytecodealliance.org/pkg/wit/types"
)

// Create creates a snapshot.
func Create(request snapshots.SnapshotRequest) wit.Result[types.Snapshot, types.StorageError] {
	defer driver.LogPanic()
	return driver.Result(driver.CreateSnapshot(request))
}

// Delete deletes a snapshot.
func Delete(handle string) wit.Result[wit.Unit, types.StorageError] {
	defer driver.LogPanic()
	return driver.Result(wit.Unit{}, driver.DeleteSnapshot(handle))
}

// Get returns a snapshot.
func Get(handle string) wit.Result[types.Snapshot, types.StorageError] {
	defer driver.LogPanic()
	return driver.Result(driver.GetSnapshot(handle))
}

// List lists a page of the snapshots.
func List(source, after wit.Option[string], limit wit.Option[uint32]) wit.Result[snapshots.SnapshotPage, types.StorageError] {
	defer driver.LogPanic()
	return driver.Result(driver.ListSnapshots(source, after, limit))
}
