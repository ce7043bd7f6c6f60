//! A storage array that exists in memory. It talks JSON over HTTP as real ones do: a login with a token that
//! expires, too few sessions, volumes, snapshots, exports to nodes. And it fails on demand: see
//! [`FakeArray`].
//!
//! | request | answer |
//! |---|---|
//! | `POST /login`, basic authentication | `{"token", "expires_in_seconds"}`; 401; 503 with too many sessions |
//! | `GET /volumes?after=&limit=` | `{"volumes": [...], "more"}`, in the order of their names |
//! | `GET /volumes/{name}` | a [`Volume`]; 404 |
//! | `PUT /volumes/{name}`, `{"bytes", "tier", "source"?, "labels"?}` | 201; 412 when the name is taken; 404 without the source; 422 below the source's size; 507 without room |
//! | `PATCH /volumes/{name}`, `{"bytes"}` | 200, larger or the same; 422 when it would shrink; 507 |
//! | `DELETE /volumes/{name}` | 204; 404; 409 while it is exported |
//! | `PUT /volumes/{name}/exports/{node}`, `{"read_only", "exclusive"}` | 201; 412 when it is exported there; 409 when it cannot be in two places |
//! | `DELETE /volumes/{name}/exports/{node}`, `DELETE /volumes/{name}/exports` | 204; 404 |
//! | `PUT /snapshots/{name}`, `{"volume"}` | 201, a [`Snapshot`]; 412; 404 |
//! | `GET`, `DELETE /snapshots/{name}` | as of volumes |
//! | `GET /snapshots?volume=&after=&limit=` | `{"snapshots": [...], "more"}` |
//! | `GET /pool` | a [`Pool`] |
//!
//! Every request but the login carries the token, and is answered with 401 when it is not known any more. An
//! error's body is `{"error": "..."}`.
#![forbid(unsafe_code)]

mod array;
mod fault;
mod model;
mod server;

pub use array::{Array, ArrayCredentials, ArrayRequest, ArrayResponse};
pub use fault::{ArrayFault, RequestBarrier};
pub use model::{ArrayContent, ArrayPool, Counters, Export, Snapshot, Volume, VolumeSource};
pub use server::FakeArray;
