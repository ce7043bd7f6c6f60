package driver

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"unicode"

	types "wit_component/cofferdam_storage_types"

	wit "go.bytecodealliance.org/pkg/wit/types"
)

const (
	defaultSize uint64 = 1 << 30
	maxSize     uint64 = 1 << 50
	// The contract's limit for names, in bytes.
	maxName = 128
	// Longer names have a digest in their handle, so that page tokens stay below 128 bytes.
	maxReadableName = 64
)

var modes = map[types.AccessMode]string{
	types.AccessMode_SingleNodeWriter:       "single-node-writer",
	types.AccessMode_SingleNodeReaderOnly:   "single-node-reader-only",
	types.AccessMode_MultiNodeReaderOnly:    "multi-node-reader-only",
	types.AccessMode_MultiNodeSingleWriter:  "multi-node-single-writer",
	types.AccessMode_MultiNodeMultiWriter:   "multi-node-multi-writer",
	types.AccessMode_SingleNodeSingleWriter: "single-node-single-writer",
	types.AccessMode_SingleNodeMultiWriter:  "single-node-multi-writer",
}

// handleFromName returns the handle of a name: always the same one, and readable if the name is short.
func handleFromName(prefix, name string) (string, error) {
	if name == "" || len(name) > maxName || strings.ContainsFunc(name, unicode.IsControl) {
		return "", failure(types.ErrorKind_InvalidArgument,
			"the name has %d bytes; expected 1 to %d without control characters", len(name), maxName)
	}
	if len(name) <= maxReadableName {
		return prefix + "-" + name, nil
	}
	return prefix + "-fnv-" + digest(name), nil
}

// digest is FNV-1a with 128 bits. Two names with one digest have one handle: records have names, so the second is rejected.
func digest(text string) string {
	hash := fnv.New128a()
	hash.Write([]byte(text))
	return fmt.Sprintf("%x", hash.Sum(nil))
}

func checkParameters(parameters []wit.Tuple2[string, string]) error {
	if len(parameters) == 0 {
		return nil
	}
	return failure(types.ErrorKind_InvalidArgument,
		"unknown parameter %q: this driver has none", parameters[0].F0)
}

// canonicalCapabilities returns the capabilities as sorted strings: the order of a request has no meaning.
func canonicalCapabilities(capabilities []types.VolumeCapability) ([]string, error) {
	if len(capabilities) == 0 {
		return nil, failure(types.ErrorKind_InvalidArgument,
			"no volume capability was given; expected at least one")
	}
	canonical := make([]string, 0, len(capabilities))
	for _, capability := range capabilities {
		canonical = append(canonical, canonicalCapability(capability))
	}
	slices.Sort(canonical)
	return slices.Compact(canonical), nil
}

func canonicalCapability(capability types.VolumeCapability) string {
	mode := modes[capability.Mode]
	if capability.Access.Tag() == types.AccessType_Block {
		return mode + " block"
	}
	access := capability.Access.Filesystem()
	return fmt.Sprintf("%s filesystem %s %q %s", mode, show(access.FsType, "%q"), access.MountFlags, show(access.MountGroup, "%q"))
}

// show formats an option. "none" is not quoted, so it differs from every quoted text.
func show[T any](value wit.Option[T], format string) string {
	if !value.IsSome() {
		return "none"
	}
	return fmt.Sprintf(format, value.Some())
}

// chooseSize returns the required size, or the default: the size of the source, or defaultSize.
func chooseSize(capacity types.CapacityRange, sourceSize wit.Option[uint64]) (uint64, error) {
	maximum := min(maxSize, capacity.LimitBytes.SomeOr(maxSize))
	minimum := sourceSize.SomeOr(1)
	size := capacity.RequiredBytes.SomeOr(sourceSize.SomeOr(min(defaultSize, maximum)))
	if size < minimum || size > maximum {
		return 0, failure(types.ErrorKind_OutOfRange,
			"the size is %d bytes; the minimum is %d, the maximum %d", size, minimum, maximum)
	}
	return size, nil
}
