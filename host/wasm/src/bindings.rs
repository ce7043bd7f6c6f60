wasmtime::component::bindgen!({
    path: "../../wit",
    world: "complete",
    imports: {
        default: trappable,
        // What touches a disk, the network or another call's turn waits; the guest sees a plain call either
        // way.
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
