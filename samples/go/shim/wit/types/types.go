// Package types holds what the generated bindings use for WIT's option, result and tuple.
package types

const (
	// OptionNone is the tag of an absent value.
	OptionNone uint8 = 0
	// OptionSome is the tag of a present value.
	OptionSome uint8 = 1
	// ResultOk is the tag of an answer.
	ResultOk uint8 = 0
	// ResultErr is the tag of a failure.
	ResultErr uint8 = 1
)

// Unit is a value without content.
type Unit struct{}

// Tuple2 is a pair.
type Tuple2[A, B any] struct {
	F0 A
	F1 B
}

// Option is a value that may be absent.
type Option[T any] struct {
	present bool
	value   T
}

// None is the absent value.
func None[T any]() Option[T] { return Option[T]{} }

// Some is a present value.
func Some[T any](value T) Option[T] { return Option[T]{present: true, value: value} }

// Tag tells which one it is.
func (o Option[T]) Tag() uint8 {
	if o.present {
		return OptionSome
	}
	return OptionNone
}

// IsSome tells whether there is a value.
func (o Option[T]) IsSome() bool { return o.present }

// Some is the value; without one it panics.
func (o Option[T]) Some() T {
	if !o.present {
		panic("the option holds no value")
	}
	return o.value
}

// SomeOr is the value, or another one when it is absent.
func (o Option[T]) SomeOr(other T) T {
	if o.present {
		return o.value
	}
	return other
}

// Result is an answer or a failure.
type Result[T, E any] struct {
	failed bool
	ok     T
	err    E
}

// Ok is an answer.
func Ok[T, E any](ok T) Result[T, E] { return Result[T, E]{ok: ok} }

// Err is a failure.
func Err[T, E any](err E) Result[T, E] { return Result[T, E]{failed: true, err: err} }

// Tag tells which one it is.
func (r Result[T, E]) Tag() uint8 {
	if r.failed {
		return ResultErr
	}
	return ResultOk
}

// IsErr tells whether it is a failure.
func (r Result[T, E]) IsErr() bool { return r.failed }

// Ok is the answer; of a failure it panics.
func (r Result[T, E]) Ok() T {
	if r.failed {
		panic("the result is a failure")
	}
	return r.ok
}

// Err is the failure; of an answer it panics.
func (r Result[T, E]) Err() E {
	if !r.failed {
		panic("the result is no failure")
	}
	return r.err
}
