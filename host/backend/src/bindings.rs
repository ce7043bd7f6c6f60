//! What `bindgen!` makes of the contract. Nothing is written by hand here.
#![allow(missing_docs, reason = "the WIT files carry the documentation")]
#![allow(unreachable_pub, reason = "generated items are public whatever their module is")]
#![allow(clippy::all, clippy::restriction, reason = "generated code is not written for this crate's lints")]

wasmtime::component::bindgen!({
    path: "../../wit",
    world: "backend",
    imports: {
        default: trappable,
        // A store on a disk will wait; the guest sees a plain call either way.
        "cofferdam:storage/state.get": async | trappable,
        "cofferdam:storage/state.commit": async | trappable,
        "cofferdam:storage/state.scan": async | trappable,
    },
    exports: { default: async },
});
