//! Images: their JSON, and the operations that the dashboard has for them.

use std::{fmt, time::Duration};

use cofferdam_guest::{Finality, Result, StorageError, handle, http::Method, poll, time};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    client::{Ceph, EBUSY, EEXIST, ENOENT, Refusal, is_name, read},
    record::{self, Record},
};

/// Features of new images. Each is known to the kernel's client since Linux 5.1. Without `deep-flatten`, the
/// snapshots of a flattened image still depend on its source.
const FEATURES: [&str; 3] = ["layering", "exclusive-lock", "deep-flatten"];

/// Pool and name of an image. Its text is the handle of a volume or snapshot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(crate) struct ImageSpec {
    #[serde(rename = "pool_name")]
    pub(crate) pool: String,
    #[serde(rename = "image_name")]
    pub(crate) name: String,
}

impl fmt::Display for ImageSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.pool, self.name)
    }
}

/// An image.
#[derive(Debug, Deserialize)]
pub(crate) struct Image {
    pool_name: String,
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    pub(crate) id: String,
    pub(crate) size: u64,
    timestamp: String,
    pub(crate) parent: Option<Parent>,
    pub(crate) snapshots: Vec<RbdSnapshot>,
    configuration: Vec<ImageOption>,
}

/// The snapshot from which an image is cloned.
#[derive(Debug, Deserialize)]
pub(crate) struct Parent {
    #[serde(flatten)]
    pub(crate) spec: ImageSpec,
    pub(crate) snap_name: String,
}

/// A snapshot of an image.
#[derive(Debug, Deserialize)]
pub(crate) struct RbdSnapshot {
    pub(crate) name: String,
    pub(crate) size: u64,
    timestamp: String,
    children: Vec<ImageSpec>,
}

#[derive(Debug, Deserialize)]
struct ImageOption {
    name: String,
    value: String,
}

impl Image {
    pub(crate) fn spec(&self) -> ImageSpec {
        ImageSpec { pool: self.pool_name.clone(), name: self.name.clone() }
    }

    /// The driver's record. `None` for images of others, and if an image was created, but not its record.
    pub(crate) fn record(&self) -> Option<Record> {
        let option = self.configuration.iter().find(|option| option.name == record::OPTION)?;
        serde_json::from_str(&option.value).ok()
    }

    /// The time of the creation in milliseconds since 1970.
    pub(crate) fn created_ms(&self) -> u64 {
        milliseconds(&self.timestamp)
    }

    pub(crate) fn snapshot(&self, name: &str) -> Option<&RbdSnapshot> {
        self.snapshots.iter().find(|snapshot| snapshot.name == name)
    }
}

impl RbdSnapshot {
    /// The time of the creation in milliseconds since 1970.
    pub(crate) fn created_ms(&self) -> u64 {
        milliseconds(&self.timestamp)
    }
}

/// A time of Ceph in milliseconds since 1970; 0 if it cannot be read.
fn milliseconds(timestamp: &str) -> u64 {
    let time = time::parse_rfc3339(timestamp).unwrap_or(Duration::ZERO);
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Ceph {
    /// The image of a handle. `None` if the driver cannot have returned the handle.
    pub(crate) fn spec(&self, handle: &str) -> Option<ImageSpec> {
        let (pool, name) = handle.split_once('/')?;
        (self.pools().iter().any(|known| known == pool) && is_name(name))
            .then(|| ImageSpec { pool: pool.to_owned(), name: name.to_owned() })
    }

    /// Reads the image of a handle.
    pub(crate) fn find(&self, handle: &str) -> Result<Option<Image>> {
        self.spec(handle).map_or(Ok(None), |spec| self.image(&spec))
    }

    /// Reads a volume. Fails with `not-found` if it does not exist.
    pub(crate) fn volume(&self, handle: &str) -> Result<Image> {
        self.find(handle)?.ok_or_else(|| StorageError::not_found(format!("there is no volume {handle:?}")))
    }

    /// Reads an image. `None` if it does not exist.
    pub(crate) fn image(&self, spec: &ImageSpec) -> Result<Option<Image>> {
        let response =
            self.send(Method::Get, &[&spec.to_string()], |request| Ok(request.query("omit_usage", "true")))?;
        let refusal = Refusal::of(&response);
        // A 404 without the dashboard's own document may come from a proxy.
        let is_not_found = response.status == 404 && refusal.is_of_dashboard();
        let is_missing = !response.is_success()
            && (is_not_found || refusal.errno() == ENOENT)
            && refusal.component.as_deref() != Some("pool");
        if is_missing { Ok(None) } else { read(response).map(Some) }
    }

    /// Finds the image of a name in any of the pools.
    pub(crate) fn find_named(&self, prefix: &str, name: &str) -> Result<Option<Image>> {
        for pool in self.pools() {
            if let Some(found) = self.image(&named(pool, prefix, name))? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Creates an image, unless it exists.
    pub(crate) fn create(&self, spec: &ImageSpec, bytes: u64, record: &Record) -> Result<()> {
        let body = json!({
            "pool_name": spec.pool, "name": spec.name, "size": bytes, "features": FEATURES,
            "configuration": options(record)?,
        });
        self.change(Method::Post, &[], &body, &[EEXIST])?;
        self.wait_for(spec)
    }

    /// Creates an image with the content of a protected snapshot, unless it exists.
    pub(crate) fn clone_image(
        &self,
        source: &ImageSpec,
        snapshot: &str,
        spec: &ImageSpec,
        record: &Record,
    ) -> Result<()> {
        let body = json!({
            "child_pool_name": spec.pool, "child_image_name": spec.name, "features": FEATURES,
            "configuration": options(record)?,
        });
        self.change(Method::Post, &[&source.to_string(), "snap", snapshot, "clone"], &body, &[EEXIST])?;
        self.wait_for(spec)
    }

    /// Waits for an image whose creation takes longer than a request.
    fn wait_for(&self, spec: &ImageSpec) -> Result<()> {
        wait_until(|| Ok(self.image(spec)?.map(drop)))
    }

    /// Sets the record of an image.
    pub(crate) fn set_record(&self, spec: &ImageSpec, record: &Record) -> Result<()> {
        let body = json!({ "configuration": options(record)? });
        self.change(Method::Put, &[&spec.to_string()], &body, &[]).map(drop)
    }

    /// Expands an image to at least `bytes`, which must be more than the image has: the dashboard also shrinks
    /// images. Returns the new size.
    pub(crate) fn expand(&self, spec: &ImageSpec, bytes: u64) -> Result<u64> {
        self.change(Method::Put, &[&spec.to_string()], &json!({ "size": bytes }), &[])?;
        // The dashboard merges concurrent changes of one image: then it has executed only one of them.
        match self.image(spec)? {
            Some(image) if image.size >= bytes => Ok(image.size),
            _ => Err(StorageError::in_progress(format!("{spec} is being changed by another call"))),
        }
    }

    /// Deletes an image with its snapshots, if it exists.
    pub(crate) fn delete(&self, spec: &ImageSpec) -> Result<()> {
        let delete = || self.change(Method::Delete, &[&spec.to_string()], &Value::Null, &[ENOENT, EBUSY]);
        // Another request of the dashboard may have opened the image for a moment.
        let done = |errno| if errno == Some(EBUSY) { Ok(None) } else { Ok(Some(())) };
        let deleted = poll::until(Duration::from_secs(1), Duration::from_secs(3), || done(delete()?));
        deleted.map_err(|error| match error.finality {
            Finality::InProgress => StorageError::failed_precondition(format!(
                "the image {spec} is in use: a node or another client has opened it"
            )),
            Finality::Final | Finality::Unknown => error,
        })?;
        wait_until(|| Ok(self.image(spec)?.is_none().then_some(())))
    }

    /// Takes a snapshot, unless one of the name exists.
    pub(crate) fn take_snapshot(&self, spec: &ImageSpec, name: &str) -> Result<()> {
        let body = json!({ "snapshot_name": name, "mirrorImageSnapshot": false });
        self.change(Method::Post, &[&spec.to_string(), "snap"], &body, &[EEXIST]).map(drop)
    }

    /// Protects a snapshot, which a clone requires.
    pub(crate) fn protect(&self, spec: &ImageSpec, name: &str) -> Result<()> {
        let body = json!({ "is_protected": true });
        self.change(Method::Put, &[&spec.to_string(), "snap", name], &body, &[]).map(drop)
    }

    /// Deletes a snapshot. Volumes that were created from it get their own copy of the data first, which may
    /// take longer than a call.
    pub(crate) fn delete_snapshot(&self, spec: &ImageSpec, snapshot: &RbdSnapshot) -> Result<()> {
        for child in &snapshot.children {
            self.change(Method::Post, &[&child.to_string(), "flatten"], &json!({}), &[ENOENT])?;
        }
        let path = [&*spec.to_string(), "snap", &snapshot.name];
        let unprotected =
            self.change(Method::Put, &path, &json!({ "is_protected": false }), &[ENOENT, EBUSY])?;
        if unprotected == Some(EBUSY) {
            let message = format!("the volumes of {spec}@{} are being copied", snapshot.name);
            return Err(StorageError::in_progress(message).retry_after(Duration::from_secs(2)));
        }
        self.change(Method::Delete, &path, &Value::Null, &[ENOENT]).map(drop)
    }
}

/// The image of a name. Two names never have the same image.
pub(crate) fn named(pool: &str, prefix: &str, name: &str) -> ImageSpec {
    let rest = handle::MAX_LENGTH.saturating_sub(pool.len().saturating_add(1));
    ImageSpec { pool: pool.to_owned(), name: handle::from_name_with_limit(prefix, name, rest) }
}

/// Waits for a task of the dashboard.
fn wait_until(attempt: impl FnMut() -> Result<Option<()>>) -> Result<()> {
    poll::until(Duration::from_secs(1), Duration::from_secs(20), attempt)
}

fn options(record: &Record) -> Result<Value> {
    let text = serde_json::to_string(record).map_err(|error| StorageError::internal(error.to_string()))?;
    Ok(json!({ record::OPTION: text }))
}
