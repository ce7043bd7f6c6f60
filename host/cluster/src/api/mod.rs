//! The Kubernetes API on the wire: connections, paths, requests and their errors.

mod client;
pub mod connect;
mod error;
mod list;
mod resource;
mod write_body;

pub use client::{ApiClient, FIELD_MANAGER};
pub(crate) use client::{JSON_PATCH_CONTENT_TYPE, REQUEST_TIMEOUT};
pub use error::ApiError;
pub(crate) use list::{ListPage, PageRequests};
pub use resource::{ApiResource, Scope};
pub use write_body::RequestBody;
