//! Index of PersistentVolumeClaims.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use cofferdam_domain::{Claim, ClaimKey, SourceKey, Uid, VolumeName};

use super::{
    Index, Indexed,
    key_set::{KeySet as _, remove_member},
    object_table::ByKey,
    reference_counts::ReferenceCounts,
    secondary_index::{SecondaryIndex, secondary_key},
    small_set::SmallSet,
};

impl Indexed for Claim {
    type Index = ClaimIndex;
}

secondary_key! {
    /// `metadata.uid`
    ClaimUid(claim: Claim) -> &'a Uid { Some(&claim.meta.uid) }
}
secondary_key! {
    /// `spec.volumeName`
    ClaimVolume(claim: Claim) -> &'a VolumeName { claim.volume.as_ref() }
}

/// Claims by uid, by `spec.volumeName` and by the source of their volume, claims without `spec.volumeName` by
/// StorageClass, and reference counts of VolumeAttributesClasses.
#[derive(Debug, Default)]
pub struct ClaimIndex {
    pub(crate) by_uid: SecondaryIndex<ClaimUid>,
    pub(crate) unbound_by_class: HashMap<Box<str>, BTreeSet<ByKey<Claim>>>,
    pub(crate) by_volume: SecondaryIndex<ClaimVolume>,
    pub(crate) by_source: HashMap<SourceKey, SmallSet<ClaimKey>>,
    pub(crate) attributes_class_refs: ReferenceCounts,
}

impl Index<Claim> for ClaimIndex {
    fn insert(&mut self, claim: &Arc<Claim>) {
        self.by_uid.insert(claim);
        self.by_volume.insert(claim);
        claim.attributes_classes().for_each(|class| self.attributes_class_refs.increment(class));
        if let Some(source) = claim.source_key() {
            self.by_source.entry(source).or_default().insert_member(claim.key.clone());
        }
        if claim.volume.is_none() {
            let class = claim.class_name().into();
            self.unbound_by_class.entry(class).or_default().insert_member(ByKey(Arc::clone(claim)));
        }
    }

    fn remove(&mut self, claim: &Arc<Claim>) {
        self.by_uid.remove(claim);
        self.by_volume.remove(claim);
        claim.attributes_classes().for_each(|class| self.attributes_class_refs.decrement(class));
        if let Some(source) = claim.source_key() {
            remove_member(&mut self.by_source, &source, &claim.key);
        }
        if claim.volume.is_none() {
            remove_member(&mut self.unbound_by_class, claim.class_name(), &ByKey(Arc::clone(claim)));
        }
    }
}
