//! Compiles the guests.

use cofferdam_guest_builder::{Guest, build};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    build(&[
        Guest {
            package: "cofferdam-backend-memory",
            directory: "backends/memory",
            variable: "COFFERDAM_GUEST_MEMORY",
        },
        Guest {
            package: "cofferdam-backend-pool",
            directory: "backends/pool",
            variable: "COFFERDAM_GUEST_POOL",
        },
    ])
}
