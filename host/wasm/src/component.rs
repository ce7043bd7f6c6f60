//! A component that can be instantiated.

use wasmtime::component::InstancePre;

use crate::{digest::Digest, exports::Exports, inspect::ComponentInterfaces, instance::StoreData};

/// A component that is compiled and linked.
pub(crate) struct CompiledComponent {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    pub(crate) interfaces: ComponentInterfaces,
    pub(crate) pre: InstancePre<StoreData>,
    pub(crate) exports: Exports,
    /// Number of instance slots that a call needs.
    pub(crate) required_instances: u32,
}
