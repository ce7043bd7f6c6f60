//! The node that takes and deletes the snapshot of a volume: the label of a new VolumeSnapshotContent, by
//! which the snapshotter of a node-local driver finds its contents.

use std::collections::BTreeSet;

use cofferdam_cluster::{ApiError, Writer};
use cofferdam_domain::{NodeName, Volume, names};

use crate::{
    live_reads::SingleFlightReads,
    node_local::{candidate_nodes, label_selector},
};

/// Reads of the only Node that matches a node affinity. New contents whose volumes have the same node
/// affinity share them.
pub(super) type NodeReads = SingleFlightReads<Option<NodeName>>;

/// The node that every term of the volume's node affinity names with the key `topology.cofferdam.dev/node`.
/// `None` if there is none.
fn named_node(volume: &Volume) -> Option<NodeName> {
    let mut terms = volume.node_affinity_terms.iter().map(|term| term.get(names::NODE_TOPOLOGY_KEY));
    let first = terms.next()??;
    terms.all(|node| node == Some(first)).then(|| first.into())
}

/// The label selectors of the Nodes that may match the volume's node affinity, one for each term. A term of
/// which no label is known selects nothing: it would select every Node.
fn node_selectors(volume: &Volume) -> Vec<String> {
    let terms = volume.node_affinity_terms.iter().filter(|term| !term.is_empty());
    terms.map(|term| label_selector(term.iter())).collect()
}

/// Returns the node for the label of a new content: the one that the volume's node affinity names, else, if
/// `distributed`, the only Node that matches the node affinity. `None` if there is no such node, or if
/// several Nodes match: a node without the volume must not take the snapshot, and for a driver that is not
/// node-local the label has no meaning. Upstream's `getManagedByNode` takes one of several Nodes.
///
/// # Errors
/// The Nodes cannot be read.
pub(super) async fn managing_node(
    volume: &Volume,
    distributed: bool,
    writer: &Writer,
    reads: &NodeReads,
) -> Result<Option<NodeName>, ApiError> {
    let named = named_node(volume);
    if named.is_some() || !distributed {
        return Ok(named);
    }
    let selectors = node_selectors(volume);
    if selectors.is_empty() {
        return Ok(None);
    }
    let read = |_| async {
        let mut matching = BTreeSet::new();
        for selector in selectors {
            matching.extend(candidate_nodes(volume, selector, writer).await?);
        }
        Ok(matching.pop_first().filter(|_| matching.is_empty()))
    };
    // Not by selector: the result also depends on the terms without a known label.
    reads.read_live(&format!("{:?}", volume.node_affinity_terms), read).await
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use cofferdam_cluster::{decode, metrics::Metrics};
    use parking_lot::Mutex;
    use serde_json::{Value, json};

    use super::*;

    /// A volume with these terms: for each, keys with their values.
    fn volume(terms: &Value) -> Volume {
        let expression =
            |(key, values): (&String, &Value)| json!({"key": key, "operator": "In", "values": values});
        let term = |term: &Value| {
            let expressions: Vec<_> = term.as_object().unwrap().iter().map(expression).collect();
            json!({"matchExpressions": expressions})
        };
        let terms: Vec<_> = terms.as_array().unwrap().iter().map(term).collect();
        let volume = json!({
            "metadata": {"name": "v", "uid": "1", "resourceVersion": "1"},
            "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}},
        });
        decode::object(&volume.to_string()).unwrap().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_contents_share_the_reads_of_nodes() {
        let lists = Arc::new(Mutex::new(Vec::new()));
        let counted = Arc::clone(&lists);
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let query = request.uri().query().unwrap_or_default();
            let zone = if query.contains("zone%3Da") { "a" } else { "b" };
            counted.lock().push(zone);
            let labels = json!({"zone": zone});
            let node = json!({"metadata": {
                "name": format!("n-{zone}"), "uid": "u", "resourceVersion": "1", "labels": labels,
            }});
            let body = json!({"metadata": {"resourceVersion": "1"}, "items": [node]}).to_string();
            async move {
                tokio::time::sleep(Duration::from_millis(10)).await;
                let body = kube::client::Body::from(body.into_bytes());
                Ok::<_, std::convert::Infallible>(http::Response::new(body))
            }
        });
        let writer = Writer::new(kube::Client::new(service, "default"), Arc::default(), Metrics::default());
        let reads = NodeReads::default();
        let zones: Vec<_> = ["a", "a", "a", "a", "b"].map(|zone| volume(&json!([{"zone": [zone]}]))).into();
        let found = zones.iter().map(|volume| managing_node(volume, true, &writer, &reads));
        let found: Result<Vec<_>, _> = futures::future::join_all(found).await.into_iter().collect();
        let expected = ["n-a", "n-a", "n-a", "n-a", "n-b"].map(|node| Some(NodeName::from(node)));
        assert_eq!(found.unwrap(), expected);
        // One for the first content of a zone, and one for those that came during it.
        lists.lock().sort_unstable();
        assert_eq!(*lists.lock(), ["a", "a", "b"]);
    }

    #[test]
    fn a_volume_on_one_node_names_it() {
        const KEY: &str = names::NODE_TOPOLOGY_KEY;
        #[rustfmt::skip] // one row per case
        let table = [
            (json!([]),                                      None,      vec![]),
            (json!([{KEY: ["a"]}]),                          Some("a"), vec![format!("{KEY}=a")]),
            (json!([{KEY: ["a"], "zone": ["z"]}, {KEY: ["a"]}]), Some("a"),
                vec![format!("{KEY}=a,zone=z"), format!("{KEY}=a")]),
            (json!([{KEY: ["a"]}, {"zone": ["z"]}]),         None,      vec![format!("{KEY}=a"), "zone=z".to_owned()]),
            (json!([{KEY: ["a"]}, {KEY: ["b"]}]),            None,      vec![format!("{KEY}=a"), format!("{KEY}=b")]),
            (json!([{KEY: ["a", "b"]}]),                     None,      vec![]),
            (json!([{"disk.example/host": ["a"]}]),          None,      vec!["disk.example/host=a".to_owned()]),
        ];
        for (terms, node, selectors) in table {
            let volume = volume(&terms);
            assert_eq!(named_node(&volume).as_ref().map(NodeName::as_str), node, "{terms}");
            assert_eq!(node_selectors(&volume), selectors, "{terms}");
        }
    }
}
