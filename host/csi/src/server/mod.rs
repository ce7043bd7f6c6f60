//! What every server of ours on a unix socket is made of: the [`Socket`], the [`Server`] that answers on it,
//! the [`Locks`] that keep a volume to one operation, and the [`Deadline`] of a call.
//!
//! A service is what `tonic` generates of the proto files, over any type that implements its trait. The
//! server adds what all of them need: a deadline, an end for callers who went away, an answer for defects,
//! metrics, and an orderly end.

mod backend;
mod deadline;
mod dispatch;
mod listener;
mod metrics;
mod operation_locks;
mod socket;

pub use backend::BackendServer;
pub use deadline::Deadline;
pub use listener::{Server, ServerOptions};
pub use metrics::ServerMetrics;
pub use operation_locks::{OperationLock, OperationLocks};
pub use socket::{ServerSocket, SocketError, SocketOptions, UnixSocketGroup, UnixSocketMode};
