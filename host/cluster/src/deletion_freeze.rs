//! Freezes volume deletion after the cluster was restored from a backup.
//!
//! In a restored cluster, live volumes look abandoned: claims that were created after the backup are missing,
//! and a volume with reclaim policy Delete would be deleted without its claim. A response with an older
//! version than was observed before reveals a restore. The process then creates a ConfigMap, the restore
//! marker. While it exists, no process deletes volumes at a driver. An operator deletes the marker after a
//! check.
//!
//! The process may read and write the restored cluster before a reflector lists it. Therefore the
//! resourceVersion in the response of each list of a reflector, of each list, create, merge patch and
//! strategic merge patch of a [`Writer`], and of the journal's reads and writes, is compared with the highest
//! one that this process has observed, per kind (for the journal, per ConfigMap) and in memory: a process
//! that starts after the restore cannot detect it, and relies on the marker. A read that does not find a
//! claim returns no version; [`detect_restore_live`] compares the version of a later list. Responses of JSON
//! patches are not compared: one that removes the last finalizer of a deleted object returns the object's old
//! version.

use std::time::Duration;

use cofferdam_domain::{Claim, Volume};
use http::Method;
use serde_json::json;

use crate::{
    api::{ApiError, Scope},
    objects::Kind,
    store::{Cache, CachedKind},
    writer::Writer,
};
pub use crate::{
    objects::restore_marker::{RESTORE_MARKER_NAME, RestoreMarker, marker_scope},
    store::RestoreDetected,
};

/// Timeout of [`detect_restore_live`]. Its callers block other work.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns `true` if a restore was reported to this cache, or if the cache has the restore marker, even an
/// undecodable one.
pub fn is_frozen(cache: &Cache) -> bool {
    cache.restore_detector.reported().is_some()
        || !cache.restore_markers.get(&RESTORE_MARKER_NAME.into()).is_missing()
}

/// Compares the current resourceVersions of claims and PersistentVolumes with the highest observed ones, and
/// reports a restore to the [`RestoreDetector`](crate::store::RestoreDetector). [`is_frozen`] then returns
/// `true`. Call this and then [`is_frozen`] after all reads that a deletion is based on, because the reads
/// may come from the restored cluster. Both kinds are compared: one may be unchanged since the backup, and
/// each may have its own etcd.
///
/// # Errors
/// [`ApiError`] of the reads; [`ApiError::Unavailable`] if they take longer than five seconds. A detected
/// restore is not an error.
pub async fn detect_restore_live(writer: &Writer) -> Result<(), ApiError> {
    let comparisons =
        futures::future::try_join(compare_kind_live::<Claim>(writer), compare_kind_live::<Volume>(writer));
    match tokio::time::timeout(CHECK_TIMEOUT, comparisons).await {
        Ok(result) => result.map(|((), ())| ()),
        Err(_) => Err(ApiError::Unavailable {
            target: "the current resourceVersions of claims and PersistentVolumes".to_owned(),
            message: format!("no response within {CHECK_TIMEOUT:?}"),
        }),
    }
}

async fn compare_kind_live<K: CachedKind>(writer: &Writer) -> Result<(), ApiError> {
    let store = K::store(writer.cache());
    let highest_seen = store.highest_version();
    let found = writer.api().current_version(K::RESOURCE, &Scope::default()).await?;
    // Keeps the highest version of a kind without changes up to date.
    store.observe_version(found);
    writer.cache().restore_detector.report_if_older(K::RESOURCE.kind, highest_seen, found);
    Ok(())
}

/// Reads the restore marker from the API server. Returns `true` if it exists.
///
/// # Errors
/// [`ApiError`]
pub async fn is_frozen_live(writer: &Writer, namespace: &str) -> Result<bool, ApiError> {
    let path = format!("{}/{RESTORE_MARKER_NAME}", RestoreMarker::RESOURCE.collection_path(Some(namespace)));
    match writer.api().read(&path, RESTORE_MARKER_NAME).await {
        Ok(_) => Ok(true),
        Err(ApiError::NotFound(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Creates the restore marker. An existing marker is kept.
///
/// # Errors
/// [`ApiError`]. The controllers must not start before the marker exists.
pub async fn create_marker(
    writer: &Writer,
    namespace: &str,
    restored: &RestoreDetected,
) -> Result<(), ApiError> {
    let body = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": RESTORE_MARKER_NAME,
            "namespace": namespace,
            "labels": {"app.kubernetes.io/managed-by": "cofferdam"},
        },
        "data": {
            "detected": restored.to_string(),
            "meaning": "No volume is deleted while this ConfigMap exists. Check whether the volumes without \
                        a claim may be deleted, then delete this ConfigMap.",
        },
    });
    let path = RestoreMarker::RESOURCE.collection_path(Some(namespace));
    match writer.api().send_json(Method::POST, &path, "application/json", &body, RESTORE_MARKER_NAME).await {
        Ok(_) | Err(ApiError::AlreadyExists(_)) => Ok(()),
        Err(error) => Err(error),
    }
}
