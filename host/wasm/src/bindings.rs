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
    with: { "cofferdam:storage/types.secret": crate::capabilities::secrets::SecretHandle },
});
