//! Compiles the memory driver and the pool driver to WebAssembly components.

use cofferdam_guest_builder::{BuildError, GuestPackage, build};

fn main() -> Result<(), BuildError> {
    build(&[
        GuestPackage {
            package: "cofferdam-backend-memory",
            directory: "backends/memory",
            path_variable: "COFFERDAM_GUEST_MEMORY",
        },
        GuestPackage {
            package: "cofferdam-backend-pool",
            directory: "backends/pool",
            path_variable: "COFFERDAM_GUEST_POOL",
        },
    ])
}
