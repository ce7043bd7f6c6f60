//! Roles without a controller: those of a node, and the CSI server.

pub(crate) mod csi_server;
pub(crate) mod node;
