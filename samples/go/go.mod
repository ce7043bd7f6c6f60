module wit_component

go 1.26

require go.bytecodealliance.org/pkg v0.4.0

// What the generated bindings need is small, and not on the module proxy.
replace go.bytecodealliance.org/pkg => ./shim
