package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// node is the CSI node service. A volume is a directory that is bind-mounted at the staging and target paths. Block volumes are not supported.
type node struct {
	csi.UnimplementedNodeServer
	*state
	id string
}

func (n node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: n.id}, nil
}

func (n node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	response := &csi.NodeGetCapabilitiesResponse{}
	for _, capability := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		response.Capabilities = append(response.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: capability}},
		})
	}
	return response, nil
}

func (n node) NodeStageVolume(_ context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	if err := n.check(r.VolumeId, r.StagingTargetPath, r.VolumeCapability); err != nil {
		return nil, err
	}
	if err := n.checkPublished(r.VolumeId); err != nil {
		return nil, err
	}
	data := filepath.Join(n.directory, r.VolumeId)
	if err := os.MkdirAll(data, 0o777); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if err := bind(data, r.StagingTargetPath, false); err != nil {
		return nil, err
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

func (n node) NodeUnstageVolume(_ context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	if err := unbind(r.VolumeId, r.StagingTargetPath); err != nil {
		return nil, err
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

func (n node) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if err := n.check(r.VolumeId, r.TargetPath, r.VolumeCapability); err != nil {
		return nil, err
	}
	if r.StagingTargetPath == "" {
		return nil, status.Error(codes.FailedPrecondition, "staging target path is empty: expected a staged volume")
	}
	if err := n.claimTarget(r); err != nil {
		return nil, err
	}
	if err := bind(r.StagingTargetPath, r.TargetPath, r.Readonly); err != nil {
		return nil, err
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// claimTarget records the target path. It fails when a single-writer volume is already published at another path.
func (n node) claimTarget(r *csi.NodePublishVolumeRequest) error {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	volume, err := n.volume(r.VolumeId)
	if err != nil {
		return err
	}
	single := r.VolumeCapability.GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	if others := len(volume.targets); single && others > 0 && !volume.targets[r.TargetPath] {
		return status.Errorf(codes.FailedPrecondition, "volume %q has a single writer and is published at %d other paths", r.VolumeId, others)
	}
	volume.targets[r.TargetPath] = true
	return nil
}

func (n node) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := unbind(r.VolumeId, r.TargetPath); err != nil {
		return nil, err
	}
	// CSI: the plugin removes the target path that it created.
	if err := os.Remove(r.TargetPath); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if volume, err := n.volume(r.VolumeId); err == nil {
		delete(volume.targets, r.TargetPath)
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func (n node) NodeExpandVolume(_ context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	if err := n.exists(r.VolumeId, r.VolumePath); err != nil {
		return nil, err
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: r.CapacityRange.GetRequiredBytes()}, nil
}

func (n node) NodeGetVolumeStats(_ context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	if err := n.exists(r.VolumeId, r.VolumePath); err != nil {
		return nil, err
	}
	var stat syscall.Statfs_t
	if err := syscall.Statfs(r.VolumePath, &stat); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	block := int64(stat.Bsize)
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{
			Unit: csi.VolumeUsage_BYTES, Total: int64(stat.Blocks) * block,
			Available: int64(stat.Bavail) * block, Used: int64(stat.Blocks-stat.Bfree) * block,
		},
		{
			Unit: csi.VolumeUsage_INODES, Total: int64(stat.Files),
			Available: int64(stat.Ffree), Used: int64(stat.Files - stat.Ffree),
		},
	}}, nil
}

func (n node) check(id, path string, capability *csi.VolumeCapability) error {
	switch {
	case path == "":
		return status.Error(codes.InvalidArgument, "target path is empty")
	case capability == nil:
		return status.Error(codes.InvalidArgument, "volume capability is missing")
	case capability.GetBlock() != nil:
		return status.Error(codes.InvalidArgument, "block volumes are not supported")
	}
	n.mutex.Lock()
	defer n.mutex.Unlock()
	_, err := n.volume(id)
	return err
}

// checkPublished fails when the volume is not published to this node. With --attach=false, volumes need not be published.
func (n node) checkPublished(id string) error {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	volume, err := n.volume(id)
	if err != nil {
		return err
	}
	if _, published := volume.Published[n.id]; n.attach && !published {
		return status.Errorf(codes.FailedPrecondition, "volume %q is not published to %q", id, n.id)
	}
	return nil
}

func (n node) exists(id, path string) error {
	if path == "" {
		return status.Error(codes.InvalidArgument, "volume path is empty")
	}
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if _, err := n.volume(id); err != nil {
		return err
	}
	if _, err := os.Stat(path); err != nil {
		return status.Errorf(codes.NotFound, "volume path %q: %v", path, err)
	}
	return nil
}

func bind(from, to string, readonly bool) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	mounted, err := isMounted(to)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if mounted {
		return nil
	}
	if err := syscall.Mount(from, to, "", syscall.MS_BIND, ""); err != nil {
		return status.Errorf(codes.Internal, "mount %s at %s: %v", from, to, err)
	}
	if !readonly {
		return nil
	}
	// The flags of a bind mount are set by a remount. A mount whose remount fails must not stay writable.
	if err := syscall.Mount("", to, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		return status.Errorf(codes.Internal, "mount %s read-only: %v", to, errors.Join(err, syscall.Unmount(to, 0)))
	}
	return nil
}

func unbind(id, path string) error {
	if id == "" || path == "" {
		return status.Errorf(codes.InvalidArgument, "volume id %q, path %q: expected both", id, path)
	}
	for {
		mounted, err := isMounted(path)
		if err != nil {
			return status.Error(codes.Internal, err.Error())
		}
		if !mounted {
			return nil
		}
		if err := syscall.Unmount(path, 0); err != nil {
			return status.Errorf(codes.Internal, "unmount %s: %v", path, err)
		}
	}
}

// isMounted reads mountinfo, because source and target of a bind mount have the same device.
func isMounted(path string) (bool, error) {
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] == real {
			return true, nil
		}
	}
	return false, nil
}
