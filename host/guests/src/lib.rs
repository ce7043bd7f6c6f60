//! The guests that the host's build compiles to WebAssembly, as bytes.
