//! Dependencies of the scan for orphans.

use std::{collections::HashMap, sync::Arc, time::Duration};

use cofferdam_cluster::{Cache, Clock, SecretReader, Writer, metrics::Metrics, orphan_report::OrphanKind};
use cofferdam_domain::{ClusterId, DriverName, term::Term};

use super::metrics::OrphanMetrics;
use crate::{
    context::ProcessContext, drivers::ManagedDriver, events::EventRecorder, restore_check::RestoreCheck,
    settings::CallSettings,
};

/// Dependencies of the scan.
pub(crate) struct OrphanContext {
    /// Kind of what is scanned.
    pub(super) kind: OrphanKind,
    pub(super) cache: Arc<Cache>,
    pub(super) writer: Writer,
    /// Reads the Secrets of ListSnapshots.
    pub(super) secrets: SecretReader,
    pub(super) events: EventRecorder,
    pub(super) clock: Clock,
    pub(super) cluster: ClusterId,
    pub(super) drivers: HashMap<DriverName, ManagedDriver>,
    /// Namespace of the reports.
    pub(super) namespace: String,
    /// Name of the process, for the jitter.
    pub(super) identity: String,
    /// Interval between scans, to which up to a tenth is added. After a failed scan, `--retry-interval-max`
    /// applies if it is shorter.
    pub(super) interval: Duration,
    pub(super) calls: CallSettings,
    /// The term in which driver calls may begin.
    pub(super) term: Term,
    pub(super) restore_check: RestoreCheck,
    pub(super) metrics: OrphanMetrics,
    pub(super) queue_metrics: Metrics,
}

impl OrphanContext {
    /// The dependencies of a scan for orphans of one kind.
    pub(crate) fn new(
        process: &ProcessContext,
        kind: OrphanKind,
        interval: Duration,
        metrics: OrphanMetrics,
    ) -> Self {
        let is_cluster_wide = |driver: &ManagedDriver| !process.settings.is_node_local(&*driver.backend);
        let drivers = process.drivers.iter().filter(|(_, driver)| is_cluster_wide(driver));
        Self {
            kind,
            cache: Arc::clone(&process.cache),
            writer: process.writer.clone(),
            secrets: process.secrets.clone(),
            events: process.events.clone(),
            clock: Arc::clone(&process.clock),
            cluster: process.cluster.clone(),
            // A driver has one report: the processes of several nodes would overwrite each other's.
            drivers: drivers.map(|(name, driver)| (name.clone(), driver.clone())).collect(),
            namespace: process.settings.namespace.clone(),
            identity: process.settings.identity.clone(),
            interval,
            calls: process.settings.calls,
            term: process.term.clone(),
            restore_check: process.restore_check.clone(),
            metrics,
            queue_metrics: process.queue_metrics.clone(),
        }
    }
}
