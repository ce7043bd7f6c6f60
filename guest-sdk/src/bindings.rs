//! What `wit-bindgen` makes of the contract. Nothing is written by hand here: the canonical ABI passes pointers, so the
//! generated code needs `unsafe`; the rest of the crate is denied it.
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
});
