//! Holding back deletions after the cluster was restored from a backup.
//!
//! A restored etcd makes live volumes look abandoned: claims that were made after the backup are gone, and a
//! Delete volume whose claim is gone is a volume to delete. So once an answer shows an older state than was
//! seen before, a ConfigMap marks the namespace, and while it stands no role deletes anything at a driver, in
//! this process or in the next one. An operator who has looked deletes the mark.
//!
//! A watcher's list may come late: until then, what roles read and write themselves is of the restored
//! cluster already. So every list tells, and every create and merge patch. That a claim is gone has no
//! version, and counts with that of a list after it. JSON patches tell nothing: one that takes the last
//! finalizer of a deleted object is answered with the object as old as it was.

use std::time::Duration;

use cofferdam_domain::{
    Claim, ObjectMeta, Uid, Volume,
    ids::{InvalidResourceVersion, ResourceVersion},
};
use http::Method;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch as channel;

use crate::{
    cache::Cache,
    kind::{ApiResource, Kind},
    reflector::Scope,
    store::ObjectStore,
    writer::{ApiError, CachedKind, Writer},
};

/// The cluster's state is older than what was seen before: it was restored from a backup.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the cluster was restored: {kind} objects are at version {found}, but {highest_seen} was seen before"
)]
pub struct RestoreDetected {
    /// Kind whose objects told.
    pub kind: &'static str,
    /// Highest version seen before.
    pub highest_seen: ResourceVersion,
    /// Version that the cluster has now.
    pub found: ResourceVersion,
}

impl RestoreDetected {
    /// `seen`: the highest version of the kind when the request went out, whose answer has the version
    /// `found`.
    ///
    /// # Errors
    /// [`Restored`], where the answer is older.
    pub fn detect_rollback(
        kind: &'static str,
        highest_seen: ResourceVersion,
        found: ResourceVersion,
    ) -> Result<(), Self> {
        if found < highest_seen { Err(Self { kind, highest_seen, found }) } else { Ok(()) }
    }
}

/// Whether the cluster that a cache shows is no more.
#[derive(Debug, Default)]
pub struct RestoreDetector(channel::Sender<Option<RestoreDetected>>);

impl RestoreDetector {
    /// `found`: the version of an answer to a request that went out when `seen` was the highest of the kind.
    /// Tells of a restore.
    pub fn detect_rollback(&self, kind: &'static str, highest_seen: ResourceVersion, found: ResourceVersion) {
        if let Err(restored) = RestoreDetected::detect_rollback(kind, highest_seen, found) {
            self.report(restored);
        }
    }

    /// Tells of it; the first word counts.
    pub fn report(&self, restored: RestoreDetected) {
        self.0.send_if_modified(|reported| {
            let is_first = reported.is_none();
            reported.get_or_insert(restored);
            is_first
        });
    }

    /// What was told.
    pub fn reported(&self) -> Option<RestoreDetected> {
        self.0.borrow().clone()
    }

    /// Waits until it is told.
    pub async fn wait_reported(&self) -> RestoreDetected {
        let mut reported = self.0.subscribe();
        match reported.wait_for(Option::is_some).await.ok().and_then(|reported| reported.clone()) {
            Some(restored) => restored,
            None => std::future::pending().await,
        }
    }
}

/// How long a look may take: whoever waits for it holds up others.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// Name of the ConfigMap.
pub const RESTORE_MARKER_NAME: &str = "cofferdam-restored";

/// The ConfigMap that holds deletions back, as far as it matters: it exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreMarker {
    name: Box<str>,
    meta: ObjectMeta,
}

impl Kind for RestoreMarker {
    type Key = Box<str>;
    type Index = ();
    const RESOURCE: ApiResource =
        ApiResource { group: "", version: "v1", kind: "ConfigMap", plural: "configmaps", namespaced: true };

    fn decode(json: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Wire {
            metadata: Meta,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Meta {
            name: Box<str>,
            uid: Box<str>,
            resource_version: String,
        }
        let Wire { metadata } = serde_json::from_str(json).map_err(|error| error.to_string())?;
        let version = metadata.resource_version.parse();
        let version = version.map_err(|error: InvalidResourceVersion| error.to_string())?;
        let meta =
            ObjectMeta { uid: Uid::new(metadata.uid), resource_version: version, ..ObjectMeta::default() };
        Ok(Self { name: metadata.name, meta })
    }

    fn key(&self) -> Box<str> {
        self.name.clone()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
}

impl CachedKind for RestoreMarker {
    fn store(cache: &Cache) -> &ObjectStore<Self> {
        &cache.restore_markers
    }
}

/// What to watch for the mark.
pub fn marker_scope(namespace: &str) -> Scope {
    Scope {
        namespace: Some(namespace.to_owned()),
        field_selector: Some(format!("metadata.name={RESTORE_MARKER_NAME}")),
        label_selector: None,
    }
}

/// Whether deletions are held back.
pub fn is_frozen(cache: &Cache) -> bool {
    cache.restore_detector.reported().is_some()
        || !cache.restore_markers.get(&RESTORE_MARKER_NAME.into()).is_missing()
}

/// Looks whether the cluster was restored and nobody has noticed yet: [`is_held`] says so then. To be asked
/// after everything that a deletion rests on, for that may have been read from the restored cluster. Of
/// claims and of volumes, for one kind may have been quiet since the backup, and each may have an etcd of its
/// own.
///
/// # Errors
/// [`WriteError`] of the reads.
pub async fn check_live(writer: &Writer) -> Result<(), ApiError> {
    let checks =
        futures::future::try_join(check_kind_live::<Claim>(writer), check_kind_live::<Volume>(writer));
    match tokio::time::timeout(CHECK_TIMEOUT, checks).await {
        Ok(result) => result.map(drop),
        Err(_) => Err(ApiError::Unavailable {
            target: "the version of the cluster".to_owned(),
            message: format!("no answer within {CHECK_TIMEOUT:?}"),
        }),
    }
}

async fn check_kind_live<K: CachedKind>(writer: &Writer) -> Result<(), ApiError> {
    let table = K::store(writer.cache());
    let highest_seen = table.highest_version();
    let found = writer.current_version::<K>(&Scope::default()).await?;
    // A kind that is quiet knows by this where the cluster was.
    table.observe_version(found);
    writer.cache().restore_detector.detect_rollback(K::RESOURCE.kind, highest_seen, found);
    Ok(())
}

/// Whether deletions are held back, read past the cache.
///
/// # Errors
/// [`WriteError`] of the read.
pub async fn is_frozen_live(writer: &Writer, namespace: &str) -> Result<bool, ApiError> {
    let path = format!("{}/{RESTORE_MARKER_NAME}", RestoreMarker::RESOURCE.collection_path(Some(namespace)));
    match writer.read(&path, RESTORE_MARKER_NAME).await {
        Ok(_) => Ok(true),
        Err(ApiError::NotFound(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Marks the namespace. A mark that stands already is left as it is.
///
/// # Errors
/// [`WriteError`]; the roles must not start before the mark stands.
pub async fn create_marker(
    writer: &Writer,
    namespace: &str,
    restored: &RestoreDetected,
) -> Result<(), ApiError> {
    let body = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": RESTORE_MARKER_NAME, "namespace": namespace, "labels": {"app.kubernetes.io/managed-by": "cofferdam"}},
        "data": {
            "detected": restored.to_string(),
            "meaning": "No volume is deleted while this ConfigMap exists. Check that volumes whose claims are missing may \
                        go, then delete this ConfigMap.",
        },
    });
    let path = RestoreMarker::RESOURCE.collection_path(Some(namespace));
    match writer.send_json(Method::POST, &path, "application/json", &body, RESTORE_MARKER_NAME).await {
        Ok(_) | Err(ApiError::AlreadyExists(_)) => Ok(()),
        Err(error) => Err(error),
    }
}
