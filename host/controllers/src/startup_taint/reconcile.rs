//! Removes start-up taints as [`rules`] decides.

use std::{collections::BTreeSet, sync::Arc};

use cofferdam_cluster::{
    ApiError, Cache, Change, Lookup, Writer,
    metrics::Metrics,
    queue::{Action, ExponentialBackoff, Queue},
};
use cofferdam_domain::{CsiNode, DriverName, Node, NodeName};
use tokio_util::sync::CancellationToken;

use super::rules;
use crate::{
    controller::Controller,
    reconcile::{MAX_EFFECTS, action_for_write_error, subscribe},
    step_recorder::StepRecorders,
};

/// Maximum number of nodes that are reconciled concurrently. Each needs one read and one small write, once.
const WORKERS: usize = 8;

/// Dependencies of the startup-taint controller.
pub(crate) struct StartupTaintContext {
    pub(super) cache: Arc<Cache>,
    pub(super) writer: Writer,
    pub(super) recorders: StepRecorders,
    pub(super) backoff: ExponentialBackoff,
    pub(super) queue_metrics: Metrics,
    /// Drivers of this process.
    pub(super) drivers: BTreeSet<DriverName>,
}

/// The startup-taint controller.
pub(crate) struct StartupTaint {
    context: StartupTaintContext,
    nodes: Queue<NodeName>,
}

impl Controller for StartupTaint {
    type Context = StartupTaintContext;

    fn new(context: StartupTaintContext) -> Arc<Self> {
        let nodes = Queue::new("startup_taints", context.backoff, &context.queue_metrics);
        Arc::new(Self { context, nodes })
    }

    fn subscribe(self: &Arc<Self>) {
        let cache = &self.context.cache;
        subscribe(self, &cache.nodes, |controller: &Self, change: &Change<Node>| {
            if change.new.as_ref().is_some_and(|node| !node.startup_taints.is_empty()) {
                controller.nodes.add(change.key.clone());
            }
        });
        subscribe(self, &cache.csi_nodes, |controller: &Self, change: &Change<CsiNode>| {
            controller.nodes.add(change.key.clone());
        });
    }

    async fn run(self: Arc<Self>, stop: CancellationToken) {
        let controller = Arc::clone(&self);
        self.nodes
            .run(WORKERS, stop, move |name| {
                let controller = Arc::clone(&controller);
                async move { controller.reconcile(&name).await }
            })
            .await;
    }
}

impl StartupTaint {
    async fn reconcile(&self, name: &NodeName) -> Action {
        let cache = &self.context.cache;
        for _ in 0..MAX_EFFECTS {
            let Lookup::Found(node) = cache.nodes.get(name) else { return Action::Done };
            let csi_node = cache.csi_nodes.get(name).into_object();
            let is_managed = |driver: &DriverName| self.context.drivers.contains(driver);
            let drivers = rules::registered_drivers(&node, csi_node.as_deref(), is_managed);
            if drivers.is_empty() {
                return Action::Done;
            }
            if let Err(error) = self.remove_taints(&node, &drivers).await {
                return action_for_write_error::<Node>(&self.context.writer, name, &error).await;
            }
        }
        Action::Requeue
    }

    /// Removes the taints of these drivers. The cache has the keys of taints only, so that the list is read
    /// first.
    async fn remove_taints(&self, node: &Node, drivers: &[&DriverName]) -> Result<(), ApiError> {
        let writer = &self.context.writer;
        let taints = writer.read_value::<Node>(&node.name, rules::TAINTS).await?;
        let patch = taints.and_then(|taints| rules::removal_patch(&taints, drivers));
        // Another client has removed the taint or the Node.
        let Some(patch) = patch else { return writer.refresh::<Node>(&node.name).await };
        let drivers: Vec<&str> = drivers.iter().map(|driver| driver.as_str()).collect();
        let text = format!("removes the start-up taint from node {}: {}", node.name, drivers.join(", "));
        let write = writer.json_patch::<Node>(&node.name, &node.meta.uid, patch);
        self.context.recorders.of_role().record_effect(&text, write).await.map(drop)
    }
}
