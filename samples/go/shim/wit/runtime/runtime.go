// Package runtime holds what the generated bindings need to pass memory and handles between Go and the host.
package runtime

import (
	"runtime"
	"unsafe"
)

// What the host has written and the bindings have not read yet: the collector sees no pointer to it.
var fromHost runtime.Pinner

// What is of no size has an address all the same.
var nothing uint64

// Allocate returns zeroed memory that stays where it is until the pinner lets go of it. No alignment is above 8.
func Allocate(pinner *runtime.Pinner, size, align uintptr) unsafe.Pointer {
	if size == 0 {
		return unsafe.Pointer(&nothing)
	}
	memory := unsafe.Pointer(unsafe.SliceData(make([]uint64, (size+7)/8)))
	pinner.Pin(memory)
	return memory
}

// Unpin lets go of what the host has written: the bindings have read it, and hold pointers that the collector sees.
func Unpin() { fromHost.Unpin() }

//go:wasmexport cabi_realloc
func reallocate(old unsafe.Pointer, oldSize, align, size uint32) unsafe.Pointer {
	memory := Allocate(&fromHost, uintptr(size), uintptr(align))
	if old != nil {
		copy(unsafe.Slice((*byte)(memory), size), unsafe.Slice((*byte)(old), oldSize))
	}
	return memory
}

// Handle is a resource of the host, until it is given away.
type Handle struct{ value int32 }

// MakeHandle wraps a resource.
func MakeHandle(value int32) *Handle { return &Handle{value} }

// Use is the resource.
func (h *Handle) Use() int32 {
	if h.value == 0 {
		panic("the handle has been given away")
	}
	return h.value
}

// Take gives the resource away.
func (h *Handle) Take() int32 {
	value := h.Use()
	h.value = 0
	return value
}

// Set puts a resource where none is.
func (h *Handle) Set(value int32) {
	if h.value != 0 {
		panic("the handle is in use")
	}
	h.value = value
}

// TakeOrNil gives the resource away, or 0 when that has been done.
func (h *Handle) TakeOrNil() int32 {
	value := h.value
	h.value = 0
	return value
}
