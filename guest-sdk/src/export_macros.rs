//! The macros that export a backend as a component.

/// Exports a type that implements [`Backend`](crate::Backend) as a component: `export!(MyArray)`.
///
/// Optional abilities follow the type: `export!(MyArray: snapshots, restoring, expansion)`. Their names are
/// those of the contract's interfaces, with `_` in place of `-`, and each requires the corresponding trait of
/// [`abilities`](crate::abilities). Use the macro once per crate, in a crate of type `cdylib`.
///
/// The expansion contains exported symbols, which Rust treats as unsafe code. The macro is defined in this
/// crate, so a crate that uses it can still forbid unsafe code.
#[macro_export]
macro_rules! export {
    ($backend:ty $(: $($ability:ident),+ $(,)?)?) => {
        // Native linkers read the `@` in export names as a symbol version. Native builds are for tests only.
        #[cfg(target_family = "wasm")]
        const _: () = {
            type Exported = $crate::Component<$backend>;
            $crate::bindings::export_component!(Exported with_types_in $crate::bindings);
            $($($crate::export_ability!($ability);)+)?
        };
        #[cfg(not(target_family = "wasm"))]
        const _: () = {
            const fn is_a_backend<B: $crate::Backend>() {}
            is_a_backend::<$backend>();
            $($($crate::check_ability!($ability, $backend);)+)?
        };
    };
}

/// Exports one optional interface of the type `Exported`, which [`export!`](crate::export) declares.
#[doc(hidden)]
#[macro_export]
macro_rules! export_ability {
    (cloning) => {
        $crate::bindings::cloning::export_cloning!(Exported with_types_in $crate::bindings::cloning);
    };
    (restoring) => {
        $crate::bindings::restoring::export_restoring!(Exported with_types_in $crate::bindings::restoring);
    };
    (publishing) => {
        $crate::bindings::publishing::export_publishing!(Exported with_types_in $crate::bindings::publishing);
    };
    (expansion) => {
        $crate::bindings::expansion::export_expansion!(Exported with_types_in $crate::bindings::expansion);
    };
    (modification) => {
        $crate::bindings::modification::export_modification!(
            Exported with_types_in $crate::bindings::modification
        );
    };
    (snapshots) => {
        $crate::bindings::snapshots::export_snapshots!(Exported with_types_in $crate::bindings::snapshots);
    };
    (group_snapshots) => {
        $crate::bindings::group_snapshots::export_group_snapshots!(
            Exported with_types_in $crate::bindings::group_snapshots
        );
    };
    (listing) => {
        $crate::bindings::listing::export_listing!(Exported with_types_in $crate::bindings::listing);
    };
    (inspection) => {
        $crate::bindings::inspection::export_inspection!(Exported with_types_in $crate::bindings::inspection);
    };
    (capacity) => {
        $crate::bindings::capacity::export_capacity!(Exported with_types_in $crate::bindings::capacity);
    };
}

/// Checks in a native build that a type implements the trait of one exported interface.
#[doc(hidden)]
#[macro_export]
macro_rules! check_ability {
    (cloning, $backend:ty) => {
        const _: () = {
            const fn can<B: $crate::abilities::Cloning>() {}
            can::<$backend>();
        };
    };
    (restoring, $backend:ty) => {
        const _: () = {
            const fn can<B: $crate::abilities::Restoring>() {}
            can::<$backend>();
        };
    };
    (publishing, $backend:ty) => {
        const _: () = {
            const fn can<B: $crate::abilities::Publishing>() {}
            can::<$backend>();
        };
    };
    (expansion, $backend:ty) => {
        const _: () = {
            const fn can<B: $crate::abilities::Expansion>() {}
            can::<$backend>();
        };
    };
    (modification, $backend:ty) => {
        const _: () = {
            const fn can<B: $crate::abilities::Modification>() {}
            can::<$backend>();
        };
    };
    (snapshots, $backend:ty) => {
        const _: () = {
            const fn can<B: $crate::abilities::Snapshots>() {}
            can::<$backend>();
        };
    };
    (group_snapshots, $backend:ty) => {
        const _: () = {
            const fn can<B: $crate::abilities::GroupSnapshots>() {}
            can::<$backend>();
        };
    };
    (listing, $backend:ty) => {
        const _: () = {
            const fn can<B: $crate::abilities::Listing>() {}
            can::<$backend>();
        };
    };
    (inspection, $backend:ty) => {
        const _: () = {
            const fn can<B: $crate::abilities::Inspection>() {}
            can::<$backend>();
        };
    };
    (capacity, $backend:ty) => {
        const _: () = {
            const fn can<B: $crate::abilities::Capacity>() {}
            can::<$backend>();
        };
    };
}
