//! Compiles the guests.

use cofferdam_guest_builder::{BuildError, GuestPackage, build};

fn main() -> Result<(), BuildError> {
    build(&[
        GuestPackage {
            package: "cofferdam-guest-hostile",
            directory: "host/testing/guests/hostile",
            path_variable: "COFFERDAM_GUEST_HOSTILE",
        },
        GuestPackage {
            package: "cofferdam-guest-net",
            directory: "host/testing/guests/net",
            path_variable: "COFFERDAM_GUEST_NET",
        },
        GuestPackage {
            package: "cofferdam-guest-pool-tricks",
            directory: "host/testing/guests/pool-tricks",
            path_variable: "COFFERDAM_GUEST_POOL_TRICKS",
        },
        GuestPackage {
            package: "cofferdam-guest-broken",
            directory: "host/testing/guests/broken",
            path_variable: "COFFERDAM_GUEST_BROKEN",
        },
        GuestPackage {
            package: "cofferdam-example-starter",
            directory: "examples/starter",
            path_variable: "COFFERDAM_GUEST_STARTER",
        },
        GuestPackage {
            package: "cofferdam-example-array",
            directory: "examples/array-driver",
            path_variable: "COFFERDAM_GUEST_ARRAY",
        },
        GuestPackage {
            package: "cofferdam-example-aws-ebs",
            directory: "examples/aws-ebs",
            path_variable: "COFFERDAM_GUEST_AWS_EBS",
        },
        GuestPackage {
            package: "cofferdam-backend-ceph",
            directory: "backends/ceph",
            path_variable: "COFFERDAM_GUEST_CEPH",
        },
    ])
}
