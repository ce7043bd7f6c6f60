//! Indexes and the kinds that have them.

use std::sync::Arc;

use cofferdam_domain::{CsiDriver, CsiNode, Node, StorageClass, VolumeAttributesClass, VolumeSnapshotClass};

use crate::objects::{Kind, orphan_report::OrphanReport, restore_marker::RestoreMarker};

/// A kind that an [`ObjectStore`](crate::store::ObjectStore) can hold.
pub trait Indexed: Kind {
    /// The secondary index of the kind; `()` for none.
    type Index: Index<Self>;
}

/// An index over the objects of a kind. Its store updates it with every change.
pub trait Index<K>: Default + Send + Sync + 'static {
    /// Adds an object.
    fn insert(&mut self, object: &Arc<K>);
    /// Removes an object that was added.
    fn remove(&mut self, object: &Arc<K>);
}

impl<K> Index<K> for () {
    fn insert(&mut self, _: &Arc<K>) {}
    fn remove(&mut self, _: &Arc<K>) {}
}

macro_rules! not_indexed {
    ($($kind:ty),+) => {$(
        impl Indexed for $kind {
            type Index = ();
        }
    )+};
}
not_indexed!(
    StorageClass,
    VolumeAttributesClass,
    VolumeSnapshotClass,
    CsiNode,
    CsiDriver,
    Node,
    OrphanReport,
    RestoreMarker
);
