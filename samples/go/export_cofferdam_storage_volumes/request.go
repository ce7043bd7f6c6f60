package export_cofferdam_storage_volumes

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"unicode"

	"wit_component/cofferdam_storage_types"

	wit "go.bytecodealliance.org/pkg/wit/types"
)

const (
	prefix             = "go-"
	defaultSize uint64 = 1 << 30
	maxSize     uint64 = 1 << 50
	// CSI's limit for names and ids, in bytes.
	maxText = 128
)

var modes = map[cofferdam_storage_types.AccessMode]string{
	cofferdam_storage_types.AccessMode_SingleNodeWriter:       "single-node-writer",
	cofferdam_storage_types.AccessMode_SingleNodeReaderOnly:   "single-node-reader-only",
	cofferdam_storage_types.AccessMode_MultiNodeReaderOnly:    "multi-node-reader-only",
	cofferdam_storage_types.AccessMode_MultiNodeSingleWriter:  "multi-node-single-writer",
	cofferdam_storage_types.AccessMode_MultiNodeMultiWriter:   "multi-node-multi-writer",
	cofferdam_storage_types.AccessMode_SingleNodeSingleWriter: "single-node-single-writer",
	cofferdam_storage_types.AccessMode_SingleNodeMultiWriter:  "single-node-multi-writer",
}

// handleOf makes the handle of a name: readable while that fits, the same for the same name.
func handleOf(name string) (string, error) {
	if name == "" || len(name) > maxText || strings.ContainsFunc(name, unicode.IsControl) {
		return "", refused(cofferdam_storage_types.ErrorKind_InvalidArgument,
			"the volume name has %d bytes; expected 1 to %d without control characters", len(name), maxText)
	}
	if len(prefix)+len(name) <= maxText {
		return prefix + name, nil
	}
	// Two names may share a digest: the volume keeps its name, and a stranger is refused as an existing volume.
	digest := fnv.New128a()
	digest.Write([]byte(name))
	return fmt.Sprintf("%sfnv-%x", prefix, digest.Sum(nil)), nil
}

func refuseParameters(what string, pairs []wit.Tuple2[string, string]) error {
	if len(pairs) == 0 {
		return nil
	}
	return refused(cofferdam_storage_types.ErrorKind_InvalidArgument, "unknown %s %.128q: this driver has none", what, pairs[0].F0)
}

// usesOf writes every way of use out, sorted, each once: two requests with the same ways have the same list.
func usesOf(capabilities []cofferdam_storage_types.VolumeCapability) ([]string, error) {
	if len(capabilities) == 0 {
		return nil, refused(cofferdam_storage_types.ErrorKind_InvalidArgument,
			"no volume capability was given; expected at least one")
	}
	uses := make([]string, 0, len(capabilities))
	for _, capability := range capabilities {
		uses = append(uses, useOf(capability))
	}
	slices.Sort(uses)
	return slices.Compact(uses), nil
}

func useOf(capability cofferdam_storage_types.VolumeCapability) string {
	mode := modes[capability.Mode]
	if capability.Access.Tag() == cofferdam_storage_types.AccessType_Block {
		return mode + " block"
	}
	access := capability.Access.Filesystem()
	return fmt.Sprintf("%s filesystem %s %q %s", mode, show(access.FsType, "%q"), access.MountFlags, show(access.MountGroup, "%q"))
}

// show keeps an absent value apart from every value there is.
func show[T any](value wit.Option[T], format string) string {
	if !value.IsSome() {
		return "absent"
	}
	return fmt.Sprintf(format, value.Some())
}

func chooseSize(asked cofferdam_storage_types.CapacityRange) (uint64, error) {
	required := asked.RequiredBytes.SomeOr(min(defaultSize, asked.LimitBytes.SomeOr(defaultSize)))
	limit := asked.LimitBytes.SomeOr(max(required, maxSize))
	var why string
	switch {
	case required == 0 || limit == 0:
		why = "a volume has at least 1 byte"
	case required > limit:
		why = "no size is in this range"
	case required > maxSize:
		why = "a volume has at most 1 PiB"
	default:
		return required, nil
	}
	return 0, refused(cofferdam_storage_types.ErrorKind_OutOfRange, "size at least %s, at most %s: %s",
		show(asked.RequiredBytes, "%d bytes"), show(asked.LimitBytes, "%d bytes"), why)
}

func fits(size uint64, asked cofferdam_storage_types.CapacityRange) bool {
	return size >= asked.RequiredBytes.SomeOr(size) && size <= asked.LimitBytes.SomeOr(size)
}
