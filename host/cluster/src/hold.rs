//! Holding back deletions after the cluster was restored from a backup.
//!
//! A restored etcd makes live volumes look abandoned: claims that were made after the backup are gone, and a Delete volume
//! whose claim is gone is a volume to delete. So once an answer shows an older state than was seen before, a ConfigMap marks
//! the namespace, and while it stands no role deletes anything at a driver, in this process or in the next one. An operator
//! who has looked deletes the mark.
//!
//! A watcher's list may come late: until then, what roles read and write themselves is of the restored cluster already. So every
//! list tells, and every create and merge patch. That a claim is gone has no version, and counts with that of a list after it. JSON
//! patches tell nothing: one that takes the last finalizer of a deleted object is answered with the object as old as it was.

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
    kind::{Kind, Resource},
    table::Table,
    watch::Scope,
    writer::{Cached, WriteError, Writer},
};

/// The cluster's state is older than what was seen before: it was restored from a backup.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cluster was restored: {kind} objects are at version {found}, but {seen} was seen before")]
pub struct Restored {
    /// Kind whose objects told.
    pub kind: &'static str,
    /// Highest version seen before.
    pub seen: ResourceVersion,
    /// Version that the cluster has now.
    pub found: ResourceVersion,
}

impl Restored {
    /// `seen`: the highest version of the kind when the request went out, whose answer has the version `found`.
    ///
    /// # Errors
    /// [`Restored`], where the answer is older.
    pub fn compare(kind: &'static str, seen: ResourceVersion, found: ResourceVersion) -> Result<(), Self> {
        if found < seen { Err(Self { kind, seen, found }) } else { Ok(()) }
    }
}

/// Whether the cluster that a cache shows is no more.
#[derive(Debug, Default)]
pub struct Restoration(channel::Sender<Option<Restored>>);

impl Restoration {
    /// `found`: the version of an answer to a request that went out when `seen` was the highest of the kind. Tells of a restore.
    pub fn compare(&self, kind: &'static str, seen: ResourceVersion, found: ResourceVersion) {
        if let Err(restored) = Restored::compare(kind, seen, found) {
            self.tell(restored);
        }
    }

    /// Tells of it; the first word counts.
    pub fn tell(&self, restored: Restored) {
        self.0.send_if_modified(|told| {
            let first = told.is_none();
            told.get_or_insert(restored);
            first
        });
    }

    /// What was told.
    pub fn told(&self) -> Option<Restored> {
        self.0.borrow().clone()
    }

    /// Waits until it is told.
    pub async fn wait(&self) -> Restored {
        let mut told = self.0.subscribe();
        match told.wait_for(Option::is_some).await.ok().and_then(|told| told.clone()) {
            Some(restored) => restored,
            None => std::future::pending().await,
        }
    }
}

/// How long a look may take: whoever waits for it holds up others.
const LOOK: Duration = Duration::from_secs(5);

/// Name of the ConfigMap.
pub const MARK: &str = "cofferdam-restored";

/// The ConfigMap that holds deletions back, as far as it matters: it exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreMark {
    name: Box<str>,
    meta: ObjectMeta,
}

impl Kind for RestoreMark {
    type Key = Box<str>;
    type Index = ();
    const RESOURCE: Resource =
        Resource { group: "", version: "v1", kind: "ConfigMap", plural: "configmaps", namespaced: true };

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
        let meta = ObjectMeta { uid: Uid::new(metadata.uid), version, ..ObjectMeta::default() };
        Ok(Self { name: metadata.name, meta })
    }

    fn key(&self) -> Box<str> {
        self.name.clone()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
}

impl Cached for RestoreMark {
    fn table(cache: &Cache) -> &Table<Self> {
        &cache.restore_marks
    }
}

/// What to watch for the mark.
pub fn scope(namespace: &str) -> Scope {
    Scope {
        namespace: Some(namespace.to_owned()),
        fields: Some(format!("metadata.name={MARK}")),
        labels: None,
    }
}

/// Whether deletions are held back.
pub fn is_held(cache: &Cache) -> bool {
    cache.restoration.told().is_some() || !cache.restore_marks.get(&MARK.into()).is_absent()
}

/// Looks whether the cluster was restored and nobody has noticed yet: [`is_held`] says so then. To be asked after everything that a
/// deletion rests on, for that may have been read from the restored cluster. Of claims and of volumes, for one kind may have been
/// quiet since the backup, and each may have an etcd of its own.
///
/// # Errors
/// [`WriteError`] of the reads.
pub async fn look(writer: &Writer) -> Result<(), WriteError> {
    let looks = futures::future::try_join(look_at::<Claim>(writer), look_at::<Volume>(writer));
    match tokio::time::timeout(LOOK, looks).await {
        Ok(looked) => looked.map(drop),
        Err(_) => Err(WriteError::Unavailable {
            target: "the version of the cluster".to_owned(),
            message: format!("no answer within {LOOK:?}"),
        }),
    }
}

async fn look_at<K: Cached>(writer: &Writer) -> Result<(), WriteError> {
    let table = K::table(writer.cache());
    let seen = table.highest();
    let found = writer.version::<K>(&Scope::default()).await?;
    // A kind that is quiet knows by this where the cluster was.
    table.saw(found);
    writer.cache().restoration.compare(K::RESOURCE.kind, seen, found);
    Ok(())
}

/// Whether deletions are held back, read past the cache.
///
/// # Errors
/// [`WriteError`] of the read.
pub async fn is_held_now(writer: &Writer, namespace: &str) -> Result<bool, WriteError> {
    let path = format!("{}/{MARK}", RestoreMark::RESOURCE.collection(Some(namespace)));
    match writer.read(&path, MARK).await {
        Ok(_) => Ok(true),
        Err(WriteError::NotFound(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Marks the namespace. A mark that stands already is left as it is.
///
/// # Errors
/// [`WriteError`]; the roles must not start before the mark stands.
pub async fn mark(writer: &Writer, namespace: &str, restored: &Restored) -> Result<(), WriteError> {
    let body = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": MARK, "namespace": namespace, "labels": {"app.kubernetes.io/managed-by": "cofferdam"}},
        "data": {
            "detected": restored.to_string(),
            "meaning": "No volume is deleted while this ConfigMap exists. Check that volumes whose claims are missing may \
                        go, then delete this ConfigMap.",
        },
    });
    let path = RestoreMark::RESOURCE.collection(Some(namespace));
    match writer.send_json(Method::POST, &path, "application/json", &body, MARK).await {
        Ok(_) | Err(WriteError::AlreadyExists(_)) => Ok(()),
        Err(error) => Err(error),
    }
}
