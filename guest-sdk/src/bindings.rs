//! Bindings generated from the contract by `wit-bindgen`. The canonical ABI passes pointers, so the generated
//! code needs `unsafe`. The rest of the crate denies it.
#![allow(unsafe_code, reason = "generated code lifts and lowers values through raw memory")]
#![allow(missing_docs, reason = "interfaces and the export macro carry their documentation in the WIT files")]
#![allow(unreachable_pub, reason = "generated items are public whatever their module is")]
#![allow(clippy::all, clippy::restriction, reason = "generated code is not written for this crate's lints")]

wit_bindgen::generate!({
    path: "../wit",
    world: "backend",
    pub_export_macro: true,
    export_macro_name: "export_component",
    default_bindings_module: "cofferdam_guest::bindings",
    additional_derives: [PartialEq],
    additional_derives_ignore: ["request", "authorization", "basic", "secret-header", "user-name"],
});

/// Bindings of one optional interface. Each has its own world because a component must export every interface
/// of its world.
macro_rules! ability {
    ($module:ident, $package:tt, $world:tt, $macro:tt, $path:tt) => {
        pub mod $module {
            wit_bindgen::generate!({
                inline: $package,
                path: "../wit",
                world: $world,
                with: { "cofferdam:storage/types@0.1.0": crate::bindings::cofferdam::storage::types },
                pub_export_macro: true,
                export_macro_name: $macro,
                default_bindings_module: $path,
                additional_derives: [PartialEq],
            });
        }
    };
}

ability!(
    cloning,
    "package cofferdam:sdk; world with-cloning { export cofferdam:storage/cloning@0.1.0; }",
    "cofferdam:sdk/with-cloning",
    "export_cloning",
    "cofferdam_guest::bindings::cloning"
);
ability!(
    restoring,
    "package cofferdam:sdk; world with-restoring { export cofferdam:storage/restoring@0.1.0; }",
    "cofferdam:sdk/with-restoring",
    "export_restoring",
    "cofferdam_guest::bindings::restoring"
);
ability!(
    publishing,
    "package cofferdam:sdk; world with-publishing { export cofferdam:storage/publishing@0.1.0; }",
    "cofferdam:sdk/with-publishing",
    "export_publishing",
    "cofferdam_guest::bindings::publishing"
);
ability!(
    expansion,
    "package cofferdam:sdk; world with-expansion { export cofferdam:storage/expansion@0.1.0; }",
    "cofferdam:sdk/with-expansion",
    "export_expansion",
    "cofferdam_guest::bindings::expansion"
);
ability!(
    modification,
    "package cofferdam:sdk; world with-modification { export cofferdam:storage/modification@0.1.0; }",
    "cofferdam:sdk/with-modification",
    "export_modification",
    "cofferdam_guest::bindings::modification"
);
ability!(
    snapshots,
    "package cofferdam:sdk; world with-snapshots { export cofferdam:storage/snapshots@0.1.0; }",
    "cofferdam:sdk/with-snapshots",
    "export_snapshots",
    "cofferdam_guest::bindings::snapshots"
);
ability!(
    group_snapshots,
    "package cofferdam:sdk; world with-group-snapshots { export cofferdam:storage/group-snapshots@0.1.0; }",
    "cofferdam:sdk/with-group-snapshots",
    "export_group_snapshots",
    "cofferdam_guest::bindings::group_snapshots"
);
ability!(
    listing,
    "package cofferdam:sdk; world with-listing { export cofferdam:storage/listing@0.1.0; }",
    "cofferdam:sdk/with-listing",
    "export_listing",
    "cofferdam_guest::bindings::listing"
);
ability!(
    inspection,
    "package cofferdam:sdk; world with-inspection { export cofferdam:storage/inspection@0.1.0; }",
    "cofferdam:sdk/with-inspection",
    "export_inspection",
    "cofferdam_guest::bindings::inspection"
);
ability!(
    capacity,
    "package cofferdam:sdk; world with-capacity { export cofferdam:storage/capacity@0.1.0; }",
    "cofferdam:sdk/with-capacity",
    "export_capacity",
    "cofferdam_guest::bindings::capacity"
);
