//! Reads of a scan: the listing of a driver's volumes or snapshots, and the intents that may refer to them.

use std::collections::BTreeSet;

use cofferdam_cluster::{
    ApiError, Cache, RequestedSources, SecretError, orphan_report::OrphanKind, store::CachedKind,
};
use cofferdam_domain::{
    DriverName, VolumeSnapshot, VolumeSnapshotContent,
    storage::{Ability, ContentSource, ErrorKind, Secrets, StorageError},
    volume::SecretRef,
};

use super::{
    context::OrphanContext,
    resource::{Resource, ResourcePages},
};
use crate::{
    drivers::ManagedDriver,
    listing::{ListingError, SnapshotPages, VolumePages},
    snapshot_controller::secret_references::{SnapshotParameterError, list_secret_without_content},
};

/// The reason why the volumes or snapshots of a driver are never listed. It ends with a change of the driver
/// or of a VolumeSnapshotClass.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unlistable {
    #[error("the driver has no `{0}`")]
    Ability(Ability),
    #[error("the driver does not list snapshots")]
    Snapshots,
    #[error(transparent)]
    Class(#[from] SnapshotParameterError),
}

/// The reason why a scan, or a decision on a request, failed. It is retried, unless the driver lists nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum ScanError {
    #[error(transparent)]
    Unlistable(#[from] Unlistable),
    #[error("the API server does not serve {0}s; expected their CustomResourceDefinition")]
    NotServed(&'static str),
    #[error(transparent)]
    Listing(ListingError),
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error(transparent)]
    Read(#[from] ApiError),
}

impl OrphanContext {
    /// Starts to list all volumes or snapshots of a driver.
    ///
    /// # Errors
    /// [`ScanError::Unlistable`], or [`ScanError::Secret`].
    pub(super) async fn list<'a>(&self, driver: &'a ManagedDriver) -> Result<ResourcePages<'a>, ScanError> {
        let backend = &*driver.backend;
        let ability = match self.kind {
            OrphanKind::Volume => Ability::Listing,
            OrphanKind::Snapshot => Ability::Snapshots,
        };
        if !backend.abilities().contains(&ability) {
            return Err(Unlistable::Ability(ability).into());
        }
        let call = |secrets: Secrets| self.calls.call(&self.term, secrets);
        match self.kind {
            OrphanKind::Volume => {
                Ok(ResourcePages::Volumes(VolumePages::new(backend, call(Secrets::default()))))
            }
            OrphanKind::Snapshot => {
                self.check_served()?;
                let references = list_secrets(&self.cache, &backend.description().name)?;
                let mut secrets = Vec::new();
                for reference in &references {
                    secrets.push(self.secrets.read(reference).await?);
                }
                if secrets.is_empty() {
                    secrets.push(Secrets::default());
                }
                let listings = secrets.into_iter().map(|secrets| SnapshotPages::new(backend, call(secrets)));
                Ok(ResourcePages::of_snapshots(listings))
            }
        }
    }

    /// Checks that the API server serves the kinds that refer to what is scanned: without their objects,
    /// every snapshot would be an orphan.
    ///
    /// # Errors
    /// [`ScanError::NotServed`]
    fn check_served(&self) -> Result<(), ScanError> {
        match self.kind {
            OrphanKind::Volume => Ok(()),
            OrphanKind::Snapshot => {
                check_kind::<VolumeSnapshotContent>(&self.cache)?;
                check_kind::<VolumeSnapshot>(&self.cache)
            }
        }
    }

    /// The next page of a listing, or `None` at its end.
    ///
    /// # Errors
    /// [`ScanError::NotServed`] at the end, if the kinds were removed during the scan;
    /// [`ScanError::Listing`]. [`ScanError::Unlistable`] for a driver that does not implement ListSnapshots:
    /// its ability does not tell.
    pub(super) async fn next_page(
        &self,
        pages: &mut ResourcePages<'_>,
    ) -> Result<Option<Vec<Resource>>, ScanError> {
        let page = pages.next().await.map_err(|error| match &error {
            ListingError::Driver(StorageError { kind: ErrorKind::Unimplemented, .. })
                if self.kind == OrphanKind::Snapshot =>
            {
                Unlistable::Snapshots.into()
            }
            ListingError::Driver(_) | ListingError::TooManyPages | ListingError::Timeout => {
                ScanError::Listing(error)
            }
        })?;
        if page.is_none() {
            self.check_served()?;
        }
        Ok(page)
    }

    /// The sources of the volumes that the driver's intents request, as the API server has them. The scan of
    /// volumes needs none.
    pub(super) async fn requested_sources(
        &self,
        driver: &ManagedDriver,
    ) -> Result<RequestedSources, ApiError> {
        match self.kind {
            OrphanKind::Volume => Ok(RequestedSources::default()),
            OrphanKind::Snapshot => driver.journal.sources_live().await,
        }
    }
}

fn check_kind<K: CachedKind>(cache: &Cache) -> Result<(), ScanError> {
    K::store(cache).is_served().then_some(()).ok_or(ScanError::NotServed(K::RESOURCE.kind))
}

/// The Secrets of ListSnapshots that the driver's classes name, each once.
fn list_secrets(cache: &Cache, driver: &DriverName) -> Result<BTreeSet<SecretRef>, Unlistable> {
    let classes = cache.snapshot_classes.list();
    let classes = classes.iter().filter(|class| class.driver == *driver);
    let secrets = classes.map(|class| list_secret_without_content(class));
    Ok(secrets.filter_map(Result::transpose).collect::<Result<_, _>>()?)
}

/// Returns true if the journal has an intent for the owner of a volume, or an intent whose volume has the
/// snapshot as its source. An intent that cannot be decoded may have any source.
pub(super) fn has_intent(driver: &ManagedDriver, sources: &RequestedSources, resource: &Resource) -> bool {
    match resource {
        Resource::Volume(status) => status
            .owner
            .as_ref()
            .is_some_and(|owner| driver.journal.has_intent_for(&owner.claim_uid, &owner.pv_name)),
        Resource::Snapshot(snapshot) => {
            let source = ContentSource::Snapshot(snapshot.handle.clone());
            sources.undecodable.is_some()
                || sources.claim_with_source(&source).is_some()
                || driver.journal.claim_with_source(&source).is_some()
        }
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_domain::ids::ResourceVersion;

    use super::*;

    #[test]
    fn snapshots_are_not_scanned_without_their_definitions() {
        let cache = Cache::default();
        let error = check_kind::<VolumeSnapshot>(&cache).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the API server does not serve VolumeSnapshots; expected their CustomResourceDefinition"
        );
        cache.snapshots.replace(Vec::new(), ResourceVersion(1));
        assert!(check_kind::<VolumeSnapshot>(&cache).is_ok());
        cache.snapshots.clear();
        assert!(check_kind::<VolumeSnapshot>(&cache).is_err());
    }
}
