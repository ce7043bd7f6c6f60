package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const defaultSize = 1 << 30

var idForm = regexp.MustCompile(`^[vs]-[0-9]{8}$`)

type options struct {
	name      string
	node      string
	others    map[string]string // further nodes, with the socket of each
	anyNode   bool
	attach    bool
	directory string
	capacity  int64
}

type volume struct {
	ID        string            `json:"id"`
	Name      string            `json:"name"`
	Size      int64             `json:"size"`
	Source    string            `json:"source,omitempty"`
	Published map[string]bool   `json:"published,omitempty"` // by node: whether it is read-only there
	Mutable   map[string]string `json:"mutable,omitempty"`
	content   *csi.VolumeContentSource
	targets   map[string]bool // where it is on the node
}

type snapshot struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	Volume  string    `json:"volume"`
	Size    int64     `json:"size"`
	Created time.Time `json:"created"`
}

// All that the driver remembers. One lock is enough: nothing is done under it that waits.
type state struct {
	options
	mutex     sync.Mutex
	next      int
	used      int64
	volumes   map[string]*volume
	snapshots map[string]*snapshot
	// The same by name, because that is how a repeated call finds what the first one made.
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

// Whether volumes can be published to a node of this name.
func (o options) knows(node string) bool {
	_, other := o.others[node]
	return o.anyNode || other || node == o.node
}

// Ids sort in the order in which they were given, so that a page of a listing goes on where the one before ended.
func (s *state) id(kind string) string {
	s.next++
	return fmt.Sprintf("%s-%08d", kind, s.next)
}

func (s *state) volume(id string) (*volume, error) {
	if id == "" {
		return nil, status.Error(codes.InvalidArgument, "volume id is empty")
	}
	if volume, ok := s.volumes[id]; ok {
		return volume, nil
	}
	return nil, status.Errorf(codes.NotFound, "volume %q does not exist", id)
}

// The size to give for a range, and whether there is one.
func size(asked *csi.CapacityRange, least int64) (int64, error) {
	required, limit := asked.GetRequiredBytes(), asked.GetLimitBytes()
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

func fits(size int64, asked *csi.CapacityRange) bool {
	return size >= asked.GetRequiredBytes() && (asked.GetLimitBytes() == 0 || size <= asked.GetLimitBytes())
}

// What can be changed while a volume lives is its tier, whatever that is.
func mutable(parameters map[string]string) error {
	for key := range parameters {
		if key != "tier" {
			return status.Errorf(codes.InvalidArgument, "mutable parameter %q: expected tier", key)
		}
	}
	return nil
}

func capabilities(wanted []*csi.VolumeCapability) error {
	if len(wanted) == 0 {
		return status.Error(codes.InvalidArgument, "volume capabilities are missing")
	}
	for _, one := range wanted {
		if one.GetMount() == nil && one.GetBlock() == nil {
			return status.Error(codes.InvalidArgument, "a volume capability has no access type")
		}
		if one.GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_UNKNOWN {
			return status.Error(codes.InvalidArgument, "a volume capability has no access mode")
		}
	}
	return nil
}

// A page of the ids after `token`, and the token of the next one.
func page[T any](all map[string]T, token string, most int32) (ids []string, next string, err error) {
	if most < 0 {
		return nil, "", status.Errorf(codes.InvalidArgument, "max_entries %d: expected 0 or more", most)
	}
	ids = slices.Sorted(maps.Keys(all))
	if token != "" {
		// The token is the last id of the page before, which may be gone by now.
		if !idForm.MatchString(token) {
			return nil, "", status.Errorf(codes.Aborted, "starting_token %q: expected one of this driver", token)
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
