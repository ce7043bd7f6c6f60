package main

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

type controller struct {
	csi.UnimplementedControllerServer
	*state
}

func (c controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	capabilities := []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_GET_VOLUME,
		csi.ControllerServiceCapability_RPC_MODIFY_VOLUME,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	}
	if !c.lacksCreate {
		capabilities = append(capabilities, csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME)
	}
	if c.attach {
		capabilities = append(capabilities,
			csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
			csi.ControllerServiceCapability_RPC_PUBLISH_READONLY,
			csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES,
		)
	}
	if c.capacity > 0 {
		capabilities = append(capabilities, csi.ControllerServiceCapability_RPC_GET_CAPACITY)
	}
	response := &csi.ControllerGetCapabilitiesResponse{}
	for _, capability := range capabilities {
		response.Capabilities = append(response.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: capability}},
		})
	}
	return response, nil
}

func (c controller) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if r.Name == "" {
		return nil, status.Error(codes.InvalidArgument, "name is empty")
	}
	if err := errors.Join(checkCapabilities(r.VolumeCapabilities), checkMutableParameters(r.MutableParameters)); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if existing, ok := c.volumeNames[r.Name]; ok {
		if !inRange(existing.Size, r.CapacityRange) || !proto.Equal(existing.content, r.VolumeContentSource) {
			return nil, status.Errorf(codes.AlreadyExists, "volume %q exists with %d bytes: expected the requested size and content source", r.Name, existing.Size)
		}
		return &csi.CreateVolumeResponse{Volume: c.created(existing)}, nil
	}
	source, least, err := c.source(r.VolumeContentSource)
	if err != nil {
		return nil, err
	}
	size, err := size(r.CapacityRange, least)
	if err != nil {
		return nil, err
	}
	if err := c.reserve(size); err != nil {
		return nil, err
	}
	created := &volume{
		ID: c.id("v"), Name: r.Name, Size: size, Source: source,
		Published: map[string]bool{}, Mutable: r.MutableParameters, content: r.VolumeContentSource, targets: map[string]bool{},
	}
	if err := c.copyData(source, created.ID); err != nil {
		c.usedBytes -= size
		return nil, err
	}
	c.volumes[created.ID] = created
	c.volumeNames[created.Name] = created
	return &csi.CreateVolumeResponse{Volume: c.created(created)}, nil
}

// created is the volume of a response to CreateVolume.
func (c controller) created(created *volume) *csi.Volume {
	message := created.message()
	if c.isTopologyUndeclared {
		// No node has this label.
		message.AccessibleTopology = []*csi.Topology{{Segments: map[string]string{c.name + "/rack": "r1"}}}
	}
	return message
}

func (c controller) source(content *csi.VolumeContentSource) (id string, least int64, err error) {
	if from := content.GetSnapshot(); from != nil {
		if snapshot, ok := c.snapshots[from.SnapshotId]; ok {
			return snapshot.ID, snapshot.Size, nil
		}
		return "", 0, status.Errorf(codes.NotFound, "snapshot %q does not exist", from.SnapshotId)
	}
	if from := content.GetVolume(); from != nil {
		volume, err := c.volume(from.VolumeId)
		if err != nil {
			return "", 0, err
		}
		return volume.ID, volume.Size, nil
	}
	return "", 0, nil
}

func (c controller) reserve(more int64) error {
	if c.capacity > 0 && c.usedBytes+more > c.capacity {
		return status.Errorf(codes.ResourceExhausted, "requested %d bytes: %d available", more, c.capacity-c.usedBytes)
	}
	c.usedBytes += more
	return nil
}

func (v *volume) message() *csi.Volume {
	return &csi.Volume{VolumeId: v.ID, CapacityBytes: v.Size, ContentSource: v.content, VolumeContext: map[string]string{"name": v.Name}}
}

func (c controller) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	volume, err := c.volume(r.VolumeId)
	switch {
	case status.Code(err) == codes.NotFound:
		return &csi.DeleteVolumeResponse{}, nil
	case err != nil:
		return nil, err
	case len(volume.Published) > 0:
		return nil, status.Errorf(codes.FailedPrecondition, "volume %q is published to a node", r.VolumeId)
	}
	if err := c.removeData(volume.ID); err != nil {
		return nil, err
	}
	delete(c.volumes, volume.ID)
	delete(c.volumeNames, volume.Name)
	c.usedBytes -= volume.Size
	return &csi.DeleteVolumeResponse{}, nil
}

func (c controller) ControllerPublishVolume(_ context.Context, r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	if r.NodeId == "" {
		return nil, status.Error(codes.InvalidArgument, "node id is empty")
	}
	if r.VolumeCapability == nil {
		return nil, status.Error(codes.InvalidArgument, "volume capability is missing")
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	volume, err := c.volume(r.VolumeId)
	if err != nil {
		return nil, err
	}
	if !c.hasNode(r.NodeId) {
		return nil, status.Errorf(codes.NotFound, "node %q does not exist: expected %q", r.NodeId, c.node)
	}
	if isSingleNode(r.VolumeCapability) {
		for other := range volume.Published {
			if other != r.NodeId {
				return nil, status.Errorf(codes.FailedPrecondition, "volume %q is published to %q: its access mode allows a single node", r.VolumeId, other)
			}
		}
	}
	if readonly, ok := volume.Published[r.NodeId]; ok && readonly != r.Readonly {
		return nil, status.Errorf(codes.AlreadyExists, "volume %q is published to %q with readonly=%t", r.VolumeId, r.NodeId, readonly)
	}
	volume.Published[r.NodeId] = r.Readonly
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"node": r.NodeId}}, nil
}

// isSingleNode reports whether the access mode allows one node only.
func isSingleNode(capability *csi.VolumeCapability) bool {
	switch capability.GetAccessMode().GetMode() {
	case csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER,
		csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:
		return false
	default:
		return true
	}
}

func (c controller) ControllerUnpublishVolume(_ context.Context, r *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	volume, err := c.volume(r.VolumeId)
	switch {
	case status.Code(err) == codes.NotFound:
		return &csi.ControllerUnpublishVolumeResponse{}, nil
	case err != nil:
		return nil, err
	case r.NodeId == "":
		clear(volume.Published)
	default:
		delete(volume.Published, r.NodeId)
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

func (c controller) ValidateVolumeCapabilities(_ context.Context, r *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if _, err := c.volume(r.VolumeId); err != nil {
		return nil, err
	}
	if err := checkCapabilities(r.VolumeCapabilities); err != nil {
		return nil, err
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.VolumeContext, VolumeCapabilities: r.VolumeCapabilities, Parameters: r.Parameters,
	}}, nil
}

func (c controller) ListVolumes(_ context.Context, r *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	ids, next, err := page(c.volumes, r.StartingToken, r.MaxEntries)
	if err != nil {
		return nil, err
	}
	response := &csi.ListVolumesResponse{NextToken: next}
	for _, id := range ids {
		volume := c.volumes[id]
		response.Entries = append(response.Entries, &csi.ListVolumesResponse_Entry{
			Volume: volume.message(),
			Status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: slices.Sorted(maps.Keys(volume.Published))},
		})
	}
	return response, nil
}

func (c controller) ControllerGetVolume(_ context.Context, r *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	volume, err := c.volume(r.VolumeId)
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeResponse{
		Volume: volume.message(),
		Status: &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: slices.Sorted(maps.Keys(volume.Published))},
	}, nil
}

func (c controller) GetCapacity(context.Context, *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return &csi.GetCapacityResponse{AvailableCapacity: max(0, c.capacity-c.usedBytes)}, nil
}

func (c controller) ControllerExpandVolume(_ context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	if r.VolumeId != "" && r.CapacityRange == nil {
		return nil, status.Error(codes.InvalidArgument, "capacity range is missing")
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	volume, err := c.volume(r.VolumeId)
	if err != nil {
		return nil, err
	}
	size, err := size(r.CapacityRange, volume.Size)
	if err != nil {
		return nil, err
	}
	if err := c.reserve(size - volume.Size); err != nil {
		return nil, err
	}
	volume.Size = size
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: size, NodeExpansionRequired: c.directory != ""}, nil
}

func (c controller) ControllerModifyVolume(_ context.Context, r *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	volume, err := c.volume(r.VolumeId)
	if err != nil {
		return nil, err
	}
	if err := checkMutableParameters(r.MutableParameters); err != nil {
		return nil, err
	}
	volume.Mutable = r.MutableParameters
	return &csi.ControllerModifyVolumeResponse{}, nil
}

func (c controller) CreateSnapshot(_ context.Context, r *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	if r.Name == "" || r.SourceVolumeId == "" {
		return nil, status.Errorf(codes.InvalidArgument, "name %q, source volume id %q: expected both", r.Name, r.SourceVolumeId)
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if existing, ok := c.snapshotNames[r.Name]; ok {
		if existing.Volume != r.SourceVolumeId {
			return nil, status.Errorf(codes.AlreadyExists, "snapshot %q is of volume %q", r.Name, existing.Volume)
		}
		return &csi.CreateSnapshotResponse{Snapshot: existing.message()}, nil
	}
	volume, err := c.volume(r.SourceVolumeId)
	if err != nil {
		return nil, err
	}
	created := &snapshot{ID: c.id("s"), Name: r.Name, Volume: volume.ID, Size: volume.Size, Created: time.Now()}
	if err := c.copyData(volume.ID, created.ID); err != nil {
		return nil, err
	}
	c.snapshots[created.ID] = created
	c.snapshotNames[created.Name] = created
	return &csi.CreateSnapshotResponse{Snapshot: created.message()}, nil
}

func (c controller) DeleteSnapshot(_ context.Context, r *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	if r.SnapshotId == "" {
		return nil, status.Error(codes.InvalidArgument, "snapshot id is empty")
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if existing, ok := c.snapshots[r.SnapshotId]; ok {
		if err := c.removeData(existing.ID); err != nil {
			return nil, err
		}
		delete(c.snapshots, existing.ID)
		delete(c.snapshotNames, existing.Name)
	}
	return &csi.DeleteSnapshotResponse{}, nil
}

func (c controller) ListSnapshots(_ context.Context, r *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	matching := map[string]*snapshot{}
	for id, snapshot := range c.snapshots {
		if (r.SnapshotId == "" || r.SnapshotId == id) && (r.SourceVolumeId == "" || r.SourceVolumeId == snapshot.Volume) {
			matching[id] = snapshot
		}
	}
	ids, next, err := page(matching, r.StartingToken, r.MaxEntries)
	if err != nil {
		return nil, err
	}
	response := &csi.ListSnapshotsResponse{NextToken: next}
	for _, id := range ids {
		response.Entries = append(response.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: matching[id].message()})
	}
	return response, nil
}
