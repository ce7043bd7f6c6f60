//! A storage array in memory with a JSON API over HTTP, similar to real arrays: a login with an expiring
//! token, a small limit of sessions, volumes, snapshots, and exports to nodes. It supports fault injection;
//! see [`FakeArray`].
//!
//! Requests and their responses:
//!
//! - `POST /login` with basic authentication: `{"token", "expires_in_seconds"}`; 401; 503 with too many
//!   sessions.
//! - `GET /volumes?after=&limit=`: `{"volumes": [...], "more"}`, sorted by name.
//! - `GET /volumes/{name}`: a [`Volume`]; 404.
//! - `PUT /volumes/{name}` with `{"bytes", "tier", "source"?, "labels"?}`: 201; 412 if the name exists; 404
//!   without the source; 422 below the source's size; 507 without space.
//! - `PATCH /volumes/{name}` with `{"bytes"}`: 200, also for the same size; 404; 422 for a smaller size; 507.
//! - `DELETE /volumes/{name}`: 204; 404; 409 if the volume is exported.
//! - `PUT /volumes/{name}/exports/{node}` with `{"read_only", "exclusive"}`: 201; 412 if the export exists;
//!   409 if it conflicts with another export.
//! - `DELETE /volumes/{name}/exports/{node}`, `DELETE /volumes/{name}/exports`: 204; 404.
//! - `PUT /snapshots/{name}` with `{"volume"}`: 201, a [`Snapshot`]; 412; 404.
//! - `GET`, `DELETE /snapshots/{name}`: as for volumes.
//! - `GET /snapshots?volume=&after=&limit=`: `{"snapshots": [...], "more"}`.
//! - `GET /pool`: an [`ArrayPool`].
//!
//! Every request except the login needs a token. The response is 401 if the token is invalid. The body of an
//! error is `{"error": "..."}`.
#![forbid(unsafe_code)]

mod array;
mod fault;
mod model;
mod server;

pub use array::{Array, ArrayCredentials, ArrayRequest, ArrayResponse};
pub use fault::{ArrayFault, RequestBarrier};
pub use model::{ArrayContent, ArrayPool, Counters, Export, Snapshot, Volume, VolumeSource};
pub use server::FakeArray;
