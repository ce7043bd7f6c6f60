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
//! - `PUT /volumes/{name}` with `{"bytes", "tier", "source"?, "labels"?}`: 201, a [`Volume`]; 412 if the name
//!   exists; 404 if the source does not exist; 422 for 0 bytes, a size below the source's or above 16 TiB, or
//!   a tier other than `fast` and `cheap`; 507 without space.
//! - `PATCH /volumes/{name}` with `{"bytes"}`: 200, a [`Volume`], also for the same size; 404; 422 for a
//!   smaller size or one above 16 TiB; 507.
//! - `DELETE /volumes/{name}`: 204; 404; 409 if the volume is exported.
//! - `PUT /volumes/{name}/exports/{node}` with `{"read_only", "exclusive"}`: 201, a [`Volume`]; 404; 412 if
//!   the node has an export; 409 if another node has an export and one of the two exports is exclusive.
//! - `DELETE /volumes/{name}/exports/{node}`: 204; 404 if the volume or the export does not exist.
//! - `DELETE /volumes/{name}/exports`: 204, also without exports; 404 if the volume does not exist.
//! - `PUT /snapshots/{name}` with `{"volume"}`: 201, a [`Snapshot`]; 412 if the name exists; 404 if the
//!   volume does not exist.
//! - `GET /snapshots/{name}`: a [`Snapshot`]; 404.
//! - `DELETE /snapshots/{name}`: 204; 404.
//! - `GET /snapshots?volume=&after=&limit=`: `{"snapshots": [...], "more"}`.
//! - `GET /pool`: an [`ArrayPool`].
//!
//! Every request except the login needs a token. The response is 401 if the token is missing, invalid or
//! expired, 400 if the body is not the expected JSON, and 405 for every other request. The body of an error
//! is `{"error": "..."}`.
#![forbid(unsafe_code)]

mod array;
mod fault;
mod model;
mod server;

pub use array::{Array, ArrayCredentials, ArrayRequest, ArrayResponse};
pub use fault::{ArrayFault, RequestBarrier};
pub use model::{ArrayContent, ArrayPool, Counters, Export, Snapshot, Volume, VolumeSource};
pub use server::FakeArray;
