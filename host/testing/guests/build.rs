//! Compiles the guests.

use cofferdam_guest_builder::{Guest, build};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    build(&[
        Guest {
            package: "cofferdam-guest-hostile",
            directory: "host/testing/guests/hostile",
            variable: "COFFERDAM_GUEST_HOSTILE",
        },
        Guest {
            package: "cofferdam-guest-net",
            directory: "host/testing/guests/net",
            variable: "COFFERDAM_GUEST_NET",
        },
        Guest {
            package: "cofferdam-guest-pool-tricks",
            directory: "host/testing/guests/pool-tricks",
            variable: "COFFERDAM_GUEST_POOL_TRICKS",
        },
        Guest {
            package: "cofferdam-guest-broken",
            directory: "host/testing/guests/broken",
            variable: "COFFERDAM_GUEST_BROKEN",
        },
        Guest {
            package: "cofferdam-example-starter",
            directory: "examples/starter",
            variable: "COFFERDAM_GUEST_STARTER",
        },
        Guest {
            package: "cofferdam-example-array",
            directory: "examples/array-driver",
            variable: "COFFERDAM_GUEST_ARRAY",
        },
    ])
}
