//! Intents and journals of the tests.

use std::collections::BTreeMap;

use cofferdam_cluster::{Intent, IntentClass, IntentSecrets, Journal, metrics::Metrics};
use cofferdam_domain::{
    ClaimKey, ReclaimPolicy,
    storage::{CapacityRange, CreateVolume},
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::FaultyApi;

/// Path of the journal's first ConfigMap.
pub(crate) const SHARD_PATH: &str = "/api/v1/namespaces/default/configmaps/cofferdam-intents-drv-0";

pub(crate) fn intent(uid: &str) -> Intent {
    Intent {
        claim: ClaimKey::new("ns", format!("claim-{uid}")),
        claim_uid: uid.into(),
        driver: "drv".into(),
        node: None,
        class: IntentClass {
            name: "gold".into(),
            uid: "class".into(),
            reclaim_policy: ReclaimPolicy::Delete,
            mount_options: Vec::new(),
        },
        attributes_class: "".into(),
        secrets: IntentSecrets::default(),
        request: CreateVolume {
            name: format!("pvc-{uid}"),
            capacity: CapacityRange { required: Some(1), limit: None },
            capabilities: Vec::new(),
            parameters: Default::default(),
            mutable_parameters: BTreeMap::new(),
            topology: None,
            owner: None,
            source: None,
        },
        recorded_at: None,
        unneeded: None,
        mended: None,
    }
}

pub(crate) fn journal(wire: &FaultyApi, metrics: &Metrics) -> Journal {
    Journal::new(wire.writer(), "default".to_owned(), "drv".into(), metrics.clone())
}

/// Runs a journal during a test, and stops it gracefully.
pub(crate) async fn with_running<T>(journal: &Journal, test: impl Future<Output = T>) -> T {
    let stop = CancellationToken::new();
    let runner = journal.clone();
    let token = stop.clone();
    let task = tokio::spawn(async move { runner.run(token).await });
    let result = test.await;
    stop.cancel();
    task.await.unwrap();
    result
}

pub(crate) fn intent_keys(page: &Value) -> Vec<String> {
    let data = page.get("data").and_then(Value::as_object);
    data.map(|data| data.keys().cloned().collect()).unwrap_or_default()
}
