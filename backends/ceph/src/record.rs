//! The driver's data about an image.
//!
//! The dashboard of Ceph 16 sets no metadata of an image except its options, and it accepts only known options. The
//! driver keeps its record in the option `rbd_persistent_cache_path`. Only librbd reads this option, and only if the
//! image's persistent cache is enabled, which is not the default. The kernel's client ignores the options of images.

use cofferdam_guest::{Owner, ReclaimPolicy, SnapshotOwner};
use serde::{Deserialize, Serialize};

/// The option of an image that contains the record as JSON.
pub(crate) const OPTION: &str = "rbd_persistent_cache_path";

/// A record. Absent fields are not written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The capabilities of a volume, or the way in which it is published.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) uses: String,
    /// The size with which a volume was created.
    #[serde(default)]
    pub(crate) bytes: u64,
    /// The source of a volume's content, or the volume of a snapshot or publication.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<String>,
    /// The node of a publication.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<RecordedOwner>,
}

/// The owner of a volume or snapshot: cluster, UID and name of the object, and whether the cluster deletes the
/// volume or snapshot with it.
type RecordedOwner = (String, String, String, bool);

impl Record {
    pub(crate) fn with_owner(mut self, owner: Option<&Owner>) -> Self {
        let owner = owner.cloned();
        self.owner = owner.map(|Owner { cluster_id, claim_uid, pv_name, reclaim_policy }| {
            (cluster_id, claim_uid, pv_name, reclaim_policy == ReclaimPolicy::Delete)
        });
        self
    }

    pub(crate) fn with_snapshot_owner(mut self, owner: Option<SnapshotOwner>) -> Self {
        self.owner = owner.map(|SnapshotOwner { cluster_id, snapshot_uid, content_name, reclaim_policy }| {
            (cluster_id, snapshot_uid, content_name, reclaim_policy == ReclaimPolicy::Delete)
        });
        self
    }

    pub(crate) fn cluster(&self) -> Option<&str> {
        self.owner.as_ref().map(|(cluster, ..)| cluster.as_str())
    }

    pub(crate) fn owner(self) -> Option<Owner> {
        let (cluster_id, claim_uid, pv_name, delete) = self.owner?;
        Some(Owner { cluster_id, claim_uid, pv_name, reclaim_policy: policy(delete) })
    }

    pub(crate) fn snapshot_owner(self) -> Option<SnapshotOwner> {
        let (cluster_id, snapshot_uid, content_name, delete) = self.owner?;
        Some(SnapshotOwner { cluster_id, snapshot_uid, content_name, reclaim_policy: policy(delete) })
    }
}

const fn policy(delete: bool) -> ReclaimPolicy {
    if delete { ReclaimPolicy::Delete } else { ReclaimPolicy::Retain }
}
