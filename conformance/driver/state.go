package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const defaultSize = 1 << 30

var idPattern = regexp.MustCompile(`^([a-z0-9-]+-)?[vs]-[0-9]{8}x*$`)

type options struct {
	name       string
	node       string
	otherNodes map[string]string // further nodes by name, with the socket of their node service
	anyNode    bool
	anyVolume  bool // volumes of the controller in another process exist
	attach     bool
	directory  string
	capacity   int64
	*oddities
}

type volume struct {
	ID        string            `json:"id"`
	Name      string            `json:"name"`
	Size      int64             `json:"size"`
	Source    string            `json:"source,omitempty"`
	Published map[string]bool   `json:"published,omitempty"` // node name to read-only
	Mutable   map[string]string `json:"mutable,omitempty"`
	content   *csi.VolumeContentSource
	targets   map[string]bool // target paths on the node
}

type snapshot struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	Volume  string    `json:"volume"`
	Size    int64     `json:"size"`
	Created time.Time `json:"created"`
}

// state is everything that the driver stores, in memory. One lock is enough: no call blocks while holding it.
type state struct {
	options
	mutex     sync.Mutex
	lastID    int
	usedBytes int64
	volumes   map[string]*volume
	snapshots map[string]*snapshot
	// Index by name: a repeated create returns the existing object.
	volumeNames   map[string]*volume
	snapshotNames map[string]*snapshot
}

func newState(options options) *state {
	return &state{
		options:       options,
		volumes:       map[string]*volume{},
		snapshots:     map[string]*snapshot{},
		volumeNames:   map[string]*volume{},
		snapshotNames: map[string]*snapshot{},
	}
}

// hasNode reports whether volumes can be published to the node.
func (o options) hasNode(node string) bool {
	_, other := o.otherNodes[node]
	return o.anyNode || other || node == o.node
}

// id returns a new id. Ids sort in order of creation, so that a listing can continue after any id.
func (s *state) id(kind string) string {
	s.lastID++
	id := fmt.Sprintf("%s%s-%08d", s.idPrefix, kind, s.lastID)
	return id + strings.Repeat("x", max(0, s.idLength-len(id)))
}

func (s *state) volume(id string) (*volume, error) {
	if id == "" {
		return nil, status.Error(codes.InvalidArgument, "volume id is empty")
	}
	if volume, ok := s.volumes[id]; ok {
		return volume, nil
	}
	if s.anyVolume && idPattern.MatchString(id) {
		s.volumes[id] = &volume{ID: id, Published: map[string]bool{s.node: false}, targets: map[string]bool{}}
		return s.volumes[id], nil
	}
	return nil, status.Errorf(codes.NotFound, "volume %q does not exist", id)
}

// size returns the size of a volume for a capacity range. The volume has at least `least` bytes, those of its
// source or its current size.
func size(requested *csi.CapacityRange, least int64) (int64, error) {
	required, limit := requested.GetRequiredBytes(), requested.GetLimitBytes()
	if required < 0 || limit < 0 || (limit > 0 && limit < required) {
		return 0, status.Errorf(codes.InvalidArgument, "capacity from %d to %d bytes: expected a range", required, limit)
	}
	size := max(required, least)
	if required == 0 && least == 0 {
		size = defaultSize
		if limit > 0 {
			size = min(size, limit)
		}
	}
	if limit > 0 && size > limit {
		return 0, status.Errorf(codes.OutOfRange, "capacity of at most %d bytes: the source has %d", limit, least)
	}
	return size, nil
}

func inRange(size int64, requested *csi.CapacityRange) bool {
	return size >= requested.GetRequiredBytes() && (requested.GetLimitBytes() == 0 || size <= requested.GetLimitBytes())
}

// checkMutableParameters accepts the parameter "tier" only.
func checkMutableParameters(parameters map[string]string) error {
	for key := range parameters {
		if key != "tier" {
			return status.Errorf(codes.InvalidArgument, "mutable parameter %q: expected tier", key)
		}
	}
	return nil
}

func checkCapabilities(requested []*csi.VolumeCapability) error {
	if len(requested) == 0 {
		return status.Error(codes.InvalidArgument, "volume capabilities are missing")
	}
	for _, one := range requested {
		if one.GetMount() == nil && one.GetBlock() == nil {
			return status.Error(codes.InvalidArgument, "a volume capability has no access type")
		}
		if one.GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_UNKNOWN {
			return status.Error(codes.InvalidArgument, "a volume capability has no access mode")
		}
	}
	return nil
}

// page returns at most `most` ids after `token` (0: all), and the token of the next page.
func page[T any](all map[string]T, token string, most int32) (ids []string, next string, err error) {
	if most < 0 {
		return nil, "", status.Errorf(codes.InvalidArgument, "max_entries %d: expected 0 or more", most)
	}
	ids = slices.Sorted(maps.Keys(all))
	if token != "" {
		// The token is the last id of the previous page, which may be deleted meanwhile.
		if !idPattern.MatchString(token) {
			return nil, "", status.Errorf(codes.Aborted, "starting_token %q: expected a token from this driver", token)
		}
		at, found := slices.BinarySearch(ids, token)
		if found {
			at++
		}
		ids = ids[at:]
	}
	if most > 0 && len(ids) > int(most) {
		ids = ids[:most]
		next = ids[most-1]
	}
	return ids, next, nil
}

func (s *snapshot) message() *csi.Snapshot {
	return &csi.Snapshot{
		SnapshotId: s.ID, SourceVolumeId: s.Volume, SizeBytes: s.Size, CreationTime: timestamppb.New(s.Created), ReadyToUse: true,
	}
}
