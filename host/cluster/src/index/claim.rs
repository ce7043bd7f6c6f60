//! Index of PersistentVolumeClaims.

use std::collections::{BTreeSet, HashMap};

use cofferdam_domain::{Claim, ClaimKey, SourceKey, Uid, VolumeName};

use super::{
    Index, Indexed,
    key_set::{KeySet as _, remove_member},
    reference_counts::ReferenceCounts,
    small_set::SmallSet,
};

impl Indexed for Claim {
    type Index = ClaimIndex;
}

/// Claims by uid, by `spec.volumeName` and by the source of their volume, claims without `spec.volumeName` by
/// StorageClass, and reference counts of VolumeAttributesClasses.
#[derive(Debug, Default)]
pub struct ClaimIndex {
    pub(crate) by_uid: HashMap<Uid, ClaimKey>,
    pub(crate) unbound_by_class: HashMap<Box<str>, BTreeSet<ClaimKey>>,
    pub(crate) by_volume: HashMap<VolumeName, SmallSet<ClaimKey>>,
    pub(crate) by_source: HashMap<SourceKey, SmallSet<ClaimKey>>,
    pub(crate) attributes_class_refs: ReferenceCounts,
}

impl Index<Claim> for ClaimIndex {
    fn insert(&mut self, claim: &Claim) {
        self.by_uid.insert(claim.meta.uid.clone(), claim.key.clone());
        claim.attributes_classes().for_each(|class| self.attributes_class_refs.increment(class));
        if let Some(source) = claim.source_key() {
            self.by_source.entry(source).or_default().insert_member(claim.key.clone());
        }
        match &claim.volume {
            Some(volume) => {
                self.by_volume.entry(volume.clone()).or_default().insert_member(claim.key.clone());
            }
            None => {
                self.unbound_by_class
                    .entry(claim.class_name().into())
                    .or_default()
                    .insert_member(claim.key.clone());
            }
        }
    }

    fn remove(&mut self, claim: &Claim) {
        if self.by_uid.get(&claim.meta.uid) == Some(&claim.key) {
            self.by_uid.remove(&claim.meta.uid);
        }
        claim.attributes_classes().for_each(|class| self.attributes_class_refs.decrement(class));
        if let Some(source) = claim.source_key() {
            remove_member(&mut self.by_source, &source, &claim.key);
        }
        match &claim.volume {
            Some(volume) => remove_member(&mut self.by_volume, volume, &claim.key),
            None => remove_member(&mut self.unbound_by_class, claim.class_name(), &claim.key),
        }
    }
}
