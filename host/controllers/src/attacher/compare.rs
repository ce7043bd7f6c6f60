//! Compares what a driver says of its volumes with what attachments say: external-attacher's reconciliation.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use cofferdam_domain::{
    Attachment, AttachmentName, DriverName, ResourceVersion,
    storage::{Ability, Feature},
};
use tokio::time::{MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use super::{
    reconcile::Attacher,
    rules::{self, Listed},
};
use crate::{act::Driver, orphans::listing::Pages};

impl Attacher {
    /// Whether the driver tells where its volumes are published.
    pub(super) fn is_told(driver: &Driver) -> bool {
        let can = |ability| driver.backend.abilities().contains(&ability);
        can(Ability::Listing)
            && can(Ability::Publishing)
            && driver.backend.description().has(Feature::PublishedNodes)
    }

    /// Compares now and then, until `stop`.
    pub(super) async fn compare_always(&self, name: &DriverName, driver: &Driver, stop: CancellationToken) {
        let period = self.context.settings.reconcile_sync;
        let mut ticks = interval_at(tokio::time::Instant::now() + period, period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                compared = self.compare(name, driver) => if let Err(error) = compared {
                    tracing::warn!(driver = %name, "the driver's volumes could not be compared: {error}");
                }
            }
        }
    }

    async fn compare(&self, name: &DriverName, driver: &Driver) -> Result<(), String> {
        let before = self.attachments_of(name);
        if before.is_empty() {
            return Ok(());
        }
        let wanted: HashSet<_> = before
            .values()
            .filter_map(|attachment| rules::volume_of(&self.context.cache, attachment).ok())
            .map(|(_, csi)| csi.handle)
            .collect();
        let settings = &self.context.settings;
        let mut pages = Pages::new(&*driver.backend, settings.timeout).of(settings.max_entries);
        let mut listed = Listed::new();
        while let Some(page) = pages.next().await? {
            for status in page.into_iter().filter(|status| wanted.contains(&status.volume.handle)) {
                listed.entry(status.volume.handle).or_default().extend(status.published_nodes);
            }
        }
        let versions: BTreeMap<AttachmentName, ResourceVersion> =
            before.into_iter().map(|(name, attachment)| (name, attachment.meta.version)).collect();
        for (key, attachment) in self.attachments_of(name) {
            // What changed while the driver listed may be listed as it was or as it is.
            if versions.get(&key) != Some(&attachment.meta.version) {
                continue;
            }
            if rules::contradicts(&self.context.cache, &listed, &attachment) {
                tracing::info!(driver = %name, attachment = %key, attached = attachment.attached, "the driver's listing says otherwise");
                self.force(&attachment);
            } else {
                self.unforce(&key);
            }
        }
        Ok(())
    }

    fn attachments_of(&self, driver: &DriverName) -> BTreeMap<AttachmentName, Arc<Attachment>> {
        let all = self.context.cache.attachments.list();
        let ours = all.into_iter().filter(|attachment| attachment.attacher == *driver);
        ours.map(|attachment| (attachment.name.clone(), attachment)).collect()
    }
}
