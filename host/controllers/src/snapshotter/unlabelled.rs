//! VolumeSnapshotContents of node-local drivers without a node: the process of a node does not watch them,
//! and one of them may keep a snapshot of the node.

use std::{collections::BTreeSet, sync::Arc};

use cofferdam_cluster::{ApiError, Writer, objects::DecodeResult, reflector::Scope};
use cofferdam_domain::{DriverName, SnapshotHandle, VolumeSnapshotContent, names};

use super::rules;
use crate::live_reads::SingleFlightReads;

/// Reads contents without a node. Concurrent deletions share the reads.
pub(super) struct UnlabelledContents {
    writer: Writer,
    /// The node-local drivers of the process.
    drivers: BTreeSet<DriverName>,
    reads: SingleFlightReads<Arc<[DecodeResult<VolumeSnapshotContent>]>>,
}

impl UnlabelledContents {
    pub(super) fn new(writer: Writer, drivers: BTreeSet<DriverName>) -> Self {
        Self { writer, drivers, reads: SingleFlightReads::default() }
    }

    /// Returns the reason why the snapshot of a content must not be deleted: a content without a node keeps
    /// it, or cannot be decoded. `None` if there is none.
    ///
    /// # Errors
    /// The contents cannot be read.
    pub(super) async fn find_keeper(
        &self,
        content: &VolumeSnapshotContent,
        handle: &SnapshotHandle,
    ) -> Result<Option<String>, ApiError> {
        if !self.drivers.contains(&content.driver) {
            return Ok(None);
        }
        let keeps = |other: &DecodeResult<VolumeSnapshotContent>| match other {
            Ok(other) => {
                let is_of_snapshot = other.driver == content.driver && other.handle() == Some(handle);
                (is_of_snapshot && rules::keeps_snapshot(other, content))
                    .then(|| rules::kept_by(&other.name, handle))
            }
            Err(other) => Some(rules::undecodable(&other.key, handle)),
        };
        Ok(self.reads.read_live("", |_| self.read()).await?.iter().find_map(keeps))
    }

    /// Reads the contents without the label, and those whose label is empty. No label selector selects both.
    async fn read(&self) -> Result<Arc<[DecodeResult<VolumeSnapshotContent>]>, ApiError> {
        let label = names::SNAPSHOT_MANAGED_BY;
        let (absent, empty) =
            tokio::try_join!(self.select(format!("!{label}")), self.select(format!("{label}=")))?;
        Ok(absent.into_iter().chain(empty).collect())
    }

    /// Most contents without a node are those of other drivers.
    async fn select(
        &self,
        label_selector: String,
    ) -> Result<Vec<DecodeResult<VolumeSnapshotContent>>, ApiError> {
        let scope = Scope { label_selector: Some(label_selector), ..Scope::default() };
        let is_relevant = |content: &DecodeResult<VolumeSnapshotContent>| {
            content.as_ref().map_or(true, |content| self.drivers.contains(&content.driver))
        };
        self.writer.read_scope(&scope, is_relevant).await
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_apiserver::{ApiServer, Options};
    use cofferdam_cluster::{decode, metrics::Metrics};
    use http::{Request, StatusCode};
    use serde_json::{Value, json};
    use tower::ServiceExt as _;

    use super::*;

    fn content(name: &str, labels: &Value) -> Value {
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "deletionPolicy": "Retain", "driver": "local.example.com", "source": {"snapshotHandle": "h"},
                "volumeSnapshotRef": {"namespace": "default", "name": name},
            },
        })
    }

    /// The reason why the snapshot of the content of `n1` is not deleted, if there is a second content with
    /// these labels.
    async fn keeper(labels: &Value) -> Option<String> {
        let api = ApiServer::new(Options { uid_seed: Some(7), ..Options::default() });
        let request = Request::post("/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents")
            .body(kube::client::Body::from(content("copy", labels).to_string().into_bytes()));
        let response = api.service().oneshot(request.unwrap()).await.unwrap();
        assert_eq!(response.status(), StatusCode::CREATED, "{labels}");
        let writer =
            Writer::new(kube::Client::new(api.service(), "default"), Arc::default(), Metrics::default());
        let mut own = content("own", &json!({names::SNAPSHOT_MANAGED_BY: "n1"}));
        own["metadata"]["uid"] = json!("own");
        own["metadata"]["resourceVersion"] = json!("1");
        let own: VolumeSnapshotContent = decode::object(&own.to_string()).unwrap().unwrap();
        let contents = UnlabelledContents::new(writer, [own.driver.clone()].into());
        contents.find_keeper(&own, &"h".into()).await.unwrap()
    }

    #[tokio::test]
    async fn a_content_without_a_node_keeps_the_snapshot() {
        let kept = Some(rules::kept_by(&"copy".into(), &"h".into()));
        #[rustfmt::skip] // one row per case
        let table = [
            ("no label", json!({}), kept.clone()),
            ("an empty label", json!({names::SNAPSHOT_MANAGED_BY: ""}), kept),
            // The process of that node watches it.
            ("another node", json!({names::SNAPSHOT_MANAGED_BY: "n2"}), None),
        ];
        for (name, labels, expected) in table {
            assert_eq!(keeper(&labels).await, expected, "{name}");
        }
    }
}
