//! Types of the WIT contract, generated from `wit/`, and the host's object behind a guest's handle of a
//! secret.
#![cfg_attr(feature = "fuzzing", expect(missing_docs, reason = "the methods of HTTP have no text in `wit/`"))]

use cofferdam_domain::storage::Secret;

/// The object behind a guest's handle of a secret.
#[derive(Clone, Debug)]
#[expect(unreachable_pub, reason = "the generated bindings export it again")]
pub struct SecretHandle {
    /// The secret's name, by which the configuration binds it to origins.
    pub(crate) name: String,
    pub(crate) secret: Secret,
}

wasmtime::component::bindgen!({
    path: "../../wit",
    world: "complete",
    imports: {
        default: trappable,
        // Calls that access a disk or the network, or wait for a lock, are asynchronous in the host; the
        // guest sees a synchronous call.
        "cofferdam:storage/state.get": async | trappable,
        "cofferdam:storage/state.commit": async | trappable,
        "cofferdam:storage/state.scan": async | trappable,
        "cofferdam:storage/session.acquire": async | trappable,
        "cofferdam:storage/http.send": async | trappable,
        "cofferdam:storage/pool.create-directory": async | trappable,
        "cofferdam:storage/pool.create-image": async | trappable,
        "cofferdam:storage/pool.remove": async | trappable,
        "cofferdam:storage/pool.grow": async | trappable,
        "cofferdam:storage/pool.copy": async | trappable,
        "cofferdam:storage/pool.measure": async | trappable,
        "cofferdam:storage/pool.scan": async | trappable,
        "cofferdam:storage/pool.usage": async | trappable,
    },
    exports: { default: async },
    with: { "cofferdam:storage/types.secret": crate::bindings::SecretHandle },
});
