//! Loads of VolumeSnapshots. [`Snapshots`] creates and deletes the snapshots of a namespace, waits for their
//! states, and compares them with their contents and the storage.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams},
};
use serde_json::{Value, json};

use crate::{retry, snapshot_crds, wait::until};

/// Maximum concurrent requests of one call of [`Snapshots::create`] or `delete`.
const CONCURRENT_REQUESTS: usize = 50;

/// VolumeSnapshots of one VolumeSnapshotClass in one namespace. They are named `snapshot-0`, `snapshot-1` and
/// so on. Methods that count or compare contents take all VolumeSnapshotContents of the cluster.
#[derive(Clone)]
pub(crate) struct Snapshots {
    snapshots: Api<DynamicObject>,
    contents: Api<DynamicObject>,
    class: String,
}

impl Snapshots {
    /// Creates a VolumeSnapshotClass for the driver, with the name of the namespace and the deletion policy
    /// Delete.
    ///
    /// # Errors
    /// If the API server rejects the class, or is unreachable.
    pub(crate) async fn new(client: &Client, namespace: &str, driver: &str) -> Result<Self> {
        let [(_, snapshots), (_, contents), (_, classes)] = snapshot_crds::resources();
        let class: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "snapshot.storage.k8s.io/v1",
            "kind": "VolumeSnapshotClass",
            "metadata": { "name": namespace },
            "driver": driver,
            "deletionPolicy": "Delete",
        }))?;
        retry::create(&Api::all_with(client.clone(), &classes), &class).await?;
        Ok(Self {
            snapshots: Api::namespaced_with(client.clone(), namespace, &snapshots),
            contents: Api::all_with(client.clone(), &contents),
            class: namespace.to_owned(),
        })
    }

    /// Creates a VolumeSnapshot of a claim.
    ///
    /// # Errors
    /// If the API server rejects it, or the repetitions of the request fail for 2 minutes.
    pub(crate) async fn create_named(&self, name: &str, claim: &str) -> Result<()> {
        let source = json!({ "persistentVolumeClaimName": claim });
        self.create_with(name, json!({ "volumeSnapshotClassName": self.class, "source": source })).await
    }

    /// Creates a VolumeSnapshot with this spec.
    ///
    /// # Errors
    /// As [`create_named`](Self::create_named).
    pub(crate) async fn create_with(&self, name: &str, spec: Value) -> Result<()> {
        let snapshot = serde_json::from_value(json!({
            "apiVersion": "snapshot.storage.k8s.io/v1",
            "kind": "VolumeSnapshot",
            "metadata": { "name": name },
            "spec": spec,
        }))?;
        retry::create(&self.snapshots, &snapshot).await
    }

    /// Name of the VolumeSnapshotClass.
    pub(crate) fn class(&self) -> &str {
        &self.class
    }

    /// Creates the snapshots of these numbers, without waiting until they are ready. The sources are the
    /// claims `claim-0` to `claim-(N - 1)` in turn.
    ///
    /// # Errors
    /// As [`create_named`](Self::create_named).
    pub(crate) async fn create(&self, numbers: Range<usize>, claims: usize) -> Result<()> {
        stream::iter(numbers)
            .map(|number| async move {
                self.create_named(&name(number), &format!("claim-{}", number % claims)).await
            })
            .buffer_unordered(CONCURRENT_REQUESTS)
            .try_collect()
            .await
    }

    /// Deletes the snapshot with this name, without waiting until it is gone.
    ///
    /// # Errors
    /// If the API server rejects the request, or its repetitions fail for 2 minutes.
    pub(crate) async fn delete_named(&self, name: &str) -> Result<()> {
        retry::delete(&self.snapshots, name).await
    }

    /// Deletes the snapshots of these numbers, without waiting until they are gone.
    ///
    /// # Errors
    /// As [`delete_named`](Self::delete_named).
    pub(crate) async fn delete(&self, numbers: Range<usize>) -> Result<()> {
        stream::iter(numbers)
            .map(|number| async move { self.delete_named(&name(number)).await })
            .buffer_unordered(CONCURRENT_REQUESTS)
            .try_collect()
            .await
    }

    /// The VolumeSnapshots of the namespace by name.
    ///
    /// # Errors
    /// If the request fails.
    pub(crate) async fn list(&self) -> Result<BTreeMap<String, Value>> {
        by_name(&self.snapshots).await
    }

    /// The VolumeSnapshotContents of the cluster by name.
    ///
    /// # Errors
    /// If the request fails.
    pub(crate) async fn contents(&self) -> Result<BTreeMap<String, Value>> {
        by_name(&self.contents).await
    }

    /// Waits until at least this number of snapshots is ready.
    ///
    /// # Errors
    /// If fewer are ready after `limit`. The error contains their number, and an error of a status.
    pub(crate) async fn wait_ready(&self, least: usize, limit: Duration) -> Result<()> {
        until(&format!("{least} snapshots are ready"), limit, async || {
            let all = self.list().await?;
            let ready = all.values().filter(|snapshot| is_ready(snapshot)).count();
            let error = all.values().find_map(|snapshot| snapshot.pointer("/status/error/message"));
            let error = error.map(|error| format!("; an error: {error}")).unwrap_or_default();
            ensure!(ready >= least, "{ready} of {} are{error}", all.len());
            Ok(())
        })
        .await
    }

    /// Number of snapshots that are not ready.
    ///
    /// # Errors
    /// If the request fails.
    pub(crate) async fn count_unready(&self) -> Result<usize> {
        Ok(self.list().await?.values().filter(|snapshot| !is_ready(snapshot)).count())
    }

    /// Waits until at most `most` snapshots of the namespace and at most `most` contents are left.
    ///
    /// # Errors
    /// If more are left after `limit`. The error contains the numbers.
    pub(crate) async fn wait_remaining(&self, most: usize, limit: Duration) -> Result<()> {
        until(&format!("{most} snapshots and contents are left"), limit, async || {
            let (snapshots, contents) = (self.list().await?.len(), self.contents().await?.len());
            ensure!(
                snapshots <= most && contents <= most,
                "{snapshots} snapshots and {contents} contents are"
            );
            Ok(())
        })
        .await
    }

    /// Checks that there are `count` snapshots, that each is ready and has a content of its own with a handle
    /// of its own, and that the storage has exactly the snapshots with these handles. `stored` are the
    /// handles at the storage.
    ///
    /// # Errors
    /// The first inconsistency, or a failed request.
    pub(crate) async fn ensure_consistent(&self, count: usize, stored: &BTreeSet<String>) -> Result<()> {
        let (snapshots, contents) = (self.list().await?, self.contents().await?);
        ensure!(
            snapshots.len() == count && contents.len() == count,
            "{} snapshots and {} contents: expected {count}",
            snapshots.len(),
            contents.len()
        );
        let mut handles = BTreeSet::new();
        for (name, snapshot) in &snapshots {
            ensure!(is_ready(snapshot), "{name} is not ready: {:?}", snapshot.get("status"));
            let content = bound_content(snapshot, &contents).with_context(|| name.clone())?;
            let owner = text_at(content, "/spec/volumeSnapshotRef/uid");
            ensure!(owner == text_at(snapshot, "/metadata/uid"), "the content of {name} belongs to {owner}");
            let handle = text_at(content, "/status/snapshotHandle");
            ensure!(handles.insert(handle.to_owned()), "{handle} is two snapshots");
        }
        ensure!(handles == *stored, "contents have the handles {handles:?}: the storage has {stored:?}");
        Ok(())
    }

    /// The metadata and statuses of snapshots and their contents, and the specs of the contents, without
    /// names, UIDs, handles, times and resource versions. Each form has the names of its snapshots.
    ///
    /// # Errors
    /// If a request fails, or a snapshot has no content.
    pub(crate) async fn forms(&self) -> Result<BTreeMap<String, Vec<String>>> {
        let (snapshots, contents) = (self.list().await?, self.contents().await?);
        let mut forms: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, snapshot) in snapshots {
            let content = bound_content(&snapshot, &contents).with_context(|| name.clone())?;
            forms.entry(form(&snapshot, content)).or_default().push(name);
        }
        Ok(forms)
    }
}

fn name(number: usize) -> String {
    format!("snapshot-{number}")
}

async fn by_name(api: &Api<DynamicObject>) -> Result<BTreeMap<String, Value>> {
    let mut objects = BTreeMap::new();
    for object in retry::request(async |_| api.list(&ListParams::default()).await).await?.items {
        let name = object.metadata.name.clone().context("an object without a name")?;
        objects.insert(name, serde_json::to_value(object)?);
    }
    Ok(objects)
}

/// The text at a JSON pointer; empty if there is none.
pub(crate) fn text_at<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// `status.readyToUse` of a VolumeSnapshot.
pub(crate) fn is_ready(snapshot: &Value) -> bool {
    snapshot.pointer("/status/readyToUse") == Some(&Value::Bool(true))
}

fn bound_content<'a>(snapshot: &Value, contents: &'a BTreeMap<String, Value>) -> Result<&'a Value> {
    let name = snapshot.pointer("/status/boundVolumeSnapshotContentName").and_then(Value::as_str);
    let name = name.context("its status has no content")?;
    contents.get(name).with_context(|| format!("its content {name} does not exist"))
}

/// The normal form of a snapshot, see [`Snapshots::forms`].
fn form(snapshot: &Value, content: &Value) -> String {
    let metadata = |object: &Value| {
        let metadata = object.get("metadata");
        let field = |name: &str| metadata.and_then(|metadata| metadata.get(name));
        let finalizers = field("finalizers").and_then(Value::as_array);
        // The order of finalizers has no meaning.
        let finalizers: BTreeSet<&str> = finalizers.into_iter().flatten().filter_map(Value::as_str).collect();
        let map = |name: &str| field(name).and_then(Value::as_object).cloned().unwrap_or_default();
        json!({ "annotations": map("annotations"), "finalizers": finalizers, "labels": map("labels") })
    };
    let mut form = json!({
        "snapshot": { "metadata": metadata(snapshot), "status": snapshot.get("status") },
        "content": { "metadata": metadata(content), "spec": content.get("spec"), "status": content.get("status") },
    });
    let replacements = [
        (text_at(snapshot, "/metadata/uid").to_owned(), "UID"),
        (text_at(snapshot, "/metadata/name").to_owned(), "NAME"),
        (text_at(content, "/status/snapshotHandle").to_owned(), "HANDLE"),
        (text_at(content, "/spec/source/volumeHandle").to_owned(), "VOLUME"),
    ];
    normalize(&mut form, &replacements);
    form.to_string()
}

/// Replaces texts, and removes the values of times and resource versions.
fn normalize(value: &mut Value, replacements: &[(String, &str)]) {
    match value {
        Value::Object(map) => {
            for (key, member) in map.iter_mut() {
                if matches!(key.as_str(), "creationTime" | "resourceVersion" | "time") && !member.is_null() {
                    *member = Value::String(key.clone());
                } else {
                    normalize(member, replacements);
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|member| normalize(member, replacements)),
        Value::String(text) => {
            for (from, to) in replacements {
                if text == from {
                    (*to).clone_into(text);
                } else if *to == "UID" && !from.is_empty() {
                    *text = text.replace(from.as_str(), to);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(number: usize, finalizer: &str) -> (Value, Value) {
        let (uid, handle) = (format!("uid-{number}"), format!("s-{number}"));
        let content = format!("snapcontent-{uid}");
        (
            json!({
                "metadata": { "name": name(number), "uid": uid, "finalizers": [finalizer] },
                "status": { "boundVolumeSnapshotContentName": content, "creationTime": number, "readyToUse": true },
            }),
            json!({
                "metadata": { "name": content, "uid": format!("other-{number}") },
                "spec": {
                    "source": { "volumeHandle": format!("v-{number}") },
                    "volumeSnapshotRef": { "name": name(number), "uid": uid, "resourceVersion": number.to_string() },
                },
                "status": { "snapshotHandle": handle, "creationTime": number },
            }),
        )
    }

    #[test]
    fn snapshots_that_differ_in_names_and_times_only_have_one_form() {
        let form = |number, finalizer| {
            let (snapshot, content) = pair(number, finalizer);
            form(&snapshot, &content)
        };
        assert_eq!(form(1, "a"), form(12, "a"));
        assert_ne!(form(1, "a"), form(1, "b"));
        for text in ["snapcontent-UID", "HANDLE", "VOLUME", "NAME"] {
            assert!(form(1, "a").contains(&format!("\"{text}\"")), "{text}: {}", form(1, "a"));
        }
    }
}
