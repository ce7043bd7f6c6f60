//! Compares a driver's `ListVolumes` with VolumeAttachments, as external-attacher's `ReconcileVA` does. The
//! next reconcile of a VolumeAttachment that `ListVolumes` contradicts calls the driver.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use cofferdam_backend::Backend;
use cofferdam_domain::{
    DriverName, ResourceVersion, VolumeAttachment, VolumeAttachmentName,
    storage::{Ability, Feature, Secrets},
};
use tokio::time::{MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use super::{
    reconcile::Attacher,
    rules::{self, PublishedNodesByVolume},
};
use crate::listing::{ListingError, VolumePages};

impl Attacher {
    /// Returns true if the driver publishes volumes, and its ListVolumes has the nodes that each volume is
    /// published to.
    pub(super) fn can_list_published_nodes(driver: &dyn Backend) -> bool {
        let can = |ability| driver.abilities().contains(&ability);
        can(Ability::Listing)
            && can(Ability::Publishing)
            && driver.description().has_feature(Feature::PublishedNodes)
    }

    /// Compares a driver's ListVolumes with its VolumeAttachments every `--reconcile-sync`, until `stop`.
    pub(super) async fn run_list_volumes_checks(
        &self,
        name: &DriverName,
        driver: &dyn Backend,
        stop: CancellationToken,
    ) {
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
                compared = self.check_list_volumes(name, driver) => if let Err(error) = compared {
                    tracing::warn!(driver = %name, %error, "cannot compare volumes with VolumeAttachments");
                }
            }
        }
    }

    async fn check_list_volumes(&self, name: &DriverName, driver: &dyn Backend) -> Result<(), ListingError> {
        let before = self.attachments_of(name);
        if before.is_empty() {
            return Ok(());
        }
        let handles: HashSet<_> = before
            .values()
            .filter_map(|attachment| rules::volume_of(&self.context.cache, attachment).ok())
            .map(|(_, csi)| csi.handle)
            .collect();
        let call = self.context.calls.call(&self.context.term, Secrets::default());
        let mut pages = VolumePages::new(driver, call).with_limit(self.context.settings.max_entries);
        let mut published = PublishedNodesByVolume::new();
        while let Some(page) = pages.next().await? {
            for status in page.into_iter().filter(|status| handles.contains(&status.volume.handle)) {
                published.entry(status.volume.handle).or_default().extend(status.published_node_ids);
            }
        }
        let versions: BTreeMap<VolumeAttachmentName, ResourceVersion> =
            before.into_iter().map(|(name, attachment)| (name, attachment.meta.resource_version)).collect();
        for (key, attachment) in self.attachments_of(name) {
            // An attachment that changed during the listing may be listed in its old or its new state.
            if versions.get(&key) != Some(&attachment.meta.resource_version) {
                continue;
            }
            let is_detached = rules::is_listed_as_detached(&self.context.cache, &published, &attachment);
            self.record_listing(&attachment, is_detached);
            if rules::is_out_of_sync(&self.context.cache, &published, &attachment) {
                tracing::info!(
                    driver = %name, attachment = %key, attached = attachment.attached,
                    "ListVolumes contradicts the VolumeAttachment",
                );
                self.set_force_sync(&attachment);
            } else {
                self.clear_force_sync(&key);
            }
        }
        Ok(())
    }

    fn attachments_of(&self, driver: &DriverName) -> BTreeMap<VolumeAttachmentName, Arc<VolumeAttachment>> {
        let all = self.context.cache.attachments.list();
        let of_driver = all.into_iter().filter(|attachment| attachment.attacher == *driver);
        of_driver.map(|attachment| (attachment.name.clone(), attachment)).collect()
    }
}
