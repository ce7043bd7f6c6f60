//! Snapshots. CreateSnapshot has no token, so two calls may take two snapshots: the older one stays.

use cofferdam_guest::abilities::{SnapshotPage, SnapshotRequest, Snapshots};
use cofferdam_guest::idempotent::{self, Candidate, ExistingComparison};
use cofferdam_guest::{Result, Snapshot, SnapshotOwner, StorageError, paging, parameters::ParameterReader};

use crate::ec2::{Action, Ec2, SETTLE, is_id};
use crate::xml::{self, Done};
use crate::{EbsDriver, tags, volumes::GIB};

impl Snapshots for EbsDriver {
    fn create_snapshot(request: SnapshotRequest) -> Result<Snapshot> {
        let SnapshotRequest { name, source, parameters, owner } = request;
        ParameterReader::parameters(parameters).finish()?;
        let ec2 = Ec2::new()?;
        // Another cluster may use the account, and its snapshot of this name is no duplicate.
        let cluster = owner.as_ref().map_or_else(String::new, |owner| format!("{}/", owner.cluster_id));
        let name_tag = tags::name(&cluster, &name)?;
        let owner_tag = owner.as_ref().map(|owner| {
            tags::owner(owner.reclaim_policy, [&owner.cluster_id, &owner.snapshot_uid, &owner.content_name])
        });
        let owner_tag = owner_tag.transpose()?;
        let tags = [(tags::NAME, &*name_tag), (tags::OWNER, owner_tag.as_deref().unwrap_or(""))];
        let taken = idempotent::oldest_wins(
            SETTLE,
            || {
                let found = ec2.snapshots(&format!("tag:{}", tags::NAME), &name_tag)?;
                // A snapshot that EC2 failed to take does not keep its name.
                let (failed, found): (Vec<_>, Vec<_>) =
                    found.into_iter().partition(|found| found.status == "error");
                failed.iter().try_for_each(|failed| delete(&ec2, &failed.snapshot_id))?;
                let dated =
                    found.into_iter().map(|found| (found.snapshot_id.clone(), found.start_time, found));
                Ok(dated.map(|(id, time, found)| Candidate::new(id, time, found)).collect())
            },
            |found| {
                ExistingComparison::new("snapshot", &name).equal("source", &found.volume_id, &source).check()
            },
            || {
                let action = Action::new("CreateSnapshot").set("VolumeId", &source).tag("snapshot", &tags);
                let taken: Option<xml::Snapshot> = ec2.send(&action, &["InvalidVolume.NotFound"])?;
                let missing = || StorageError::not_found(format!("there is no volume {source:?}"));
                Ok(taken.ok_or_else(missing)?.snapshot_id)
            },
            |duplicate| delete(&ec2, &duplicate.id),
        )?;
        Ok(taken.into_snapshot())
    }

    fn delete_snapshot(handle: String) -> Result<()> {
        delete(&Ec2::new()?, &handle)
    }

    fn get_snapshot(handle: String) -> Result<Snapshot> {
        Ec2::new()?.snapshot(&handle).map(xml::Snapshot::into_snapshot)
    }

    /// Lists the snapshots that this driver has taken, of all clusters.
    fn list_snapshots(
        source: Option<String>,
        after: Option<String>,
        limit: Option<u32>,
    ) -> Result<SnapshotPage> {
        let mut found = Ec2::new()?.snapshots("tag-key", tags::NAME)?;
        found.retain(|snapshot| source.as_ref().is_none_or(|source| *source == snapshot.volume_id));
        let page = paging::page(found, |snapshot| &snapshot.snapshot_id, after.as_deref(), limit)?;
        let snapshots = page.items.into_iter().map(xml::Snapshot::into_snapshot).collect();
        Ok(SnapshotPage { snapshots, next: page.next })
    }
}

impl Ec2 {
    fn snapshots(&self, filter: &str, value: &str) -> Result<Vec<xml::Snapshot>> {
        self.describe(&Action::describe("DescribeSnapshots", filter, value).set("Owner.1", "self"))
    }

    /// Reads a snapshot. Fails with `not-found` if it does not exist.
    pub(crate) fn snapshot(&self, handle: &str) -> Result<xml::Snapshot> {
        let missing = || StorageError::not_found(format!("there is no snapshot {handle:?}"));
        let found = self.snapshots("snapshot-id", handle)?;
        found.into_iter().find(|snapshot| snapshot.snapshot_id == handle).ok_or_else(missing)
    }
}

/// Deletes a snapshot. Succeeds if it does not exist.
fn delete(ec2: &Ec2, handle: &str) -> Result<()> {
    if is_id("snap-", handle) {
        let action = Action::new("DeleteSnapshot").set("SnapshotId", handle);
        ec2.send::<Done>(&action, &["InvalidSnapshot.NotFound", "InvalidSnapshotID.Malformed"])?;
    }
    Ok(())
}

impl xml::Snapshot {
    pub(crate) fn bytes(&self) -> u64 {
        self.volume_size.saturating_mul(GIB)
    }

    fn owner(&self) -> Option<SnapshotOwner> {
        let (reclaim_policy, [cluster_id, snapshot_uid, content_name]) = tags::parse_owner(&self.tag_set)?;
        Some(SnapshotOwner { cluster_id, snapshot_uid, content_name, reclaim_policy })
    }

    fn into_snapshot(self) -> Snapshot {
        Snapshot {
            size_bytes: Some(self.bytes()),
            created_at_ms: u64::try_from(self.start_time.as_millis()).unwrap_or(u64::MAX),
            ready: self.status == "completed",
            group: None,
            owner: self.owner(),
            handle: self.snapshot_id,
            source: self.volume_id,
        }
    }
}
