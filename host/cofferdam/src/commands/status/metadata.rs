//! Metadata of objects that [`super::summary`] and [`super::snapshots`] read.

use std::collections::HashMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

/// Name of the operation of an object that is being deleted, and of a PersistentVolume that is Released or
/// Failed.
pub(super) const DELETE: &str = "delete";

/// Maps objects to their names, within one namespace or of a cluster-wide kind.
pub(super) fn by_name<K>(objects: &[K], metadata: impl Fn(&K) -> &ObjectMeta) -> HashMap<&str, &K> {
    let named = objects.iter().filter_map(|object| Some((metadata(object).name.as_deref()?, object)));
    named.collect()
}

/// A time, or the epoch for an object without it, which counts as oldest.
pub(super) fn timestamp_or_epoch(time: Option<&Time>) -> Timestamp {
    time.map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}

/// Finalizers that delay the deletion of an object.
pub(super) fn finalizers_text(metadata: &ObjectMeta) -> Option<String> {
    let finalizers = metadata.finalizers.as_ref().filter(|finalizers| !finalizers.is_empty())?;
    Some(format!("waiting for finalizers {}", finalizers.join(", ")))
}
