//! Volumes: create, restore, delete, expand, modify, read and list.

use std::{collections::BTreeMap, time::Duration};

use cofferdam_guest::abilities::{
    ExpandRequest, ExpandResponse, Expansion, Listing, Modification, Restoring, VolumePage,
};
use cofferdam_guest::idempotent::{CreationTokens, ExistingComparison, TokenOutcome};
use cofferdam_guest::{
    AccessMode, AccessType, CreateRequest, KeyValues, Owner, Result, StorageError, Volume, ambient,
};
use cofferdam_guest::{VolumeCapability, VolumeStatus, paging, parameters::ParameterReader, sizes::Sizes};

use crate::ec2::{Action, Ec2, SETTLE, is_id, wait_until};
use crate::xml::{self, Done};
use crate::{EbsDriver, ZONE_KEY, tags};

pub(crate) const GIB: u64 = 1 << 30;
/// The largest volume of any type. EC2 knows the limits of each type.
const MAX_BYTES: u64 = 64 << 40;
/// Age from which a volume that EC2 does not list is a deleted one.
const MAX_LISTING_DELAY: Duration = Duration::from_mins(2);
const SIZES: Sizes = Sizes::between(GIB, MAX_BYTES).in_steps_of(GIB);

/// The parameters of a VolumeAttributesClass, and their names in EC2. EC2 checks their values, so that a
/// new type of volume needs no new driver.
const MUTABLE: [(&str, &str); 3] = [("type", "VolumeType"), ("iops", "Iops"), ("throughput", "Throughput")];
/// The parameters of a StorageClass: these have the names of Amazon's driver.
const PARAMETERS: [(&str, &str); 5] =
    [MUTABLE[0], MUTABLE[1], MUTABLE[2], ("encrypted", "Encrypted"), ("kmsKeyId", "KmsKeyId")];

/// Parameters by their names in EC2.
type Ec2Parameters = BTreeMap<&'static str, String>;

/// Reads parameters of a class. Fails with `invalid-argument` if there are others.
fn read(mut reader: ParameterReader, known: &[(&str, &'static str)]) -> Result<Ec2Parameters> {
    let found = known.iter().filter_map(|(key, name)| Some((*name, reader.text(key)?))).collect();
    reader.finish().map(|()| found)
}

/// Creates a volume, empty or from a snapshot, or returns the existing one.
pub(crate) fn create(request: &CreateRequest, snapshot: Option<&str>) -> Result<Volume> {
    let CreateRequest { name, capacity, owner, .. } = request;
    let ec2 = Ec2::new()?;
    let topology = request.topology.as_ref();
    let (requisite, preferred) =
        topology.map_or((&[][..], &[][..]), |topology| (&*topology.requisite, &*topology.preferred));
    let zone = zones(preferred).chain(zones(requisite)).next().ok_or_else(|| {
        StorageError::invalid_argument("no zone is requested; expected a class with WaitForFirstConsumer")
    })?;
    let mut parameters = read(ParameterReader::parameters(request.parameters.clone()), &PARAMETERS)?;
    let uses = capabilities(&request.capabilities)?;
    let request_tag = tags::value(format!("{parameters:?} {uses}"));
    let mutable = ParameterReader::mutable_parameters(request.mutable_parameters.clone());
    parameters.extend(read(mutable, &MUTABLE)?);
    parameters.entry("VolumeType").or_insert_with(|| "gp3".to_owned());
    parameters.extend(snapshot.map(|snapshot| ("SnapshotId", snapshot.to_owned())));
    let name_tag = tags::name("", name)?;
    let owner_tag = owner.as_ref().map(|owner| {
        tags::owner(owner.reclaim_policy, [&owner.cluster_id, &owner.claim_uid, &owner.pv_name])
    });
    let owner_tag = owner_tag.transpose()?;
    let tags = [
        (tags::NAME, &*name_tag),
        (tags::REQUEST, &request_tag),
        (tags::OWNER, owner_tag.as_deref().unwrap_or("")),
    ];
    let created = CreationTokens::new("volume", name).settle(SETTLE).find_or_create(
        || {
            let found = ec2.volumes(&format!("tag:{}", tags::NAME), &name_tag)?.into_iter();
            Ok(found.filter(|found| found.status != "error").min_by_key(|found| found.create_time))
        },
        |found| {
            let found_zone = found.availability_zone.as_str();
            let is_reachable =
                zones(requisite).next().is_none() || zones(requisite).any(|zone| zone == found_zone);
            let found_owner = found.owner().map(|owner| owner.cluster_id);
            ExistingComparison::new("volume", name)
                .equal("request", &tags::get(&found.tag_set, tags::REQUEST), &Some(&*request_tag))
                .equal("zone", found_zone, if is_reachable { found_zone } else { zone })
                .equal("snapshot", found.snapshot_id.as_str(), snapshot.unwrap_or_default())
                .same_cluster(found_owner.as_deref(), owner.as_ref())
                .size_within(found.bytes(), capacity)
                .check()
        },
        |token| {
            let source = snapshot.map(|snapshot| ec2.snapshot(snapshot)).transpose()?;
            let sizes =
                source.map_or(SIZES, |source| Sizes::between(source.bytes(), MAX_BYTES).in_steps_of(GIB));
            let action = Action::new("CreateVolume").set("AvailabilityZone", zone);
            let action = action.set("Size", sizes.choose(capacity)? / GIB).set("ClientToken", token);
            let action = action.set_all(&parameters).tag("volume", &tags);
            let created: Option<xml::Volume> = ec2.send(&action, &["IdempotentParameterMismatch"])?;
            let Some(created) = created else { return Ok(TokenOutcome::UsedUp) };
            match ec2.find_volume(&created.volume_id)? {
                Some(volume) if volume.status != "error" => Ok(TokenOutcome::Created(volume)),
                // For the token of a deleted volume, EC2 returns that volume, with its original time.
                None if ambient::now().saturating_sub(created.create_time) < MAX_LISTING_DELAY => {
                    let message = format!("EC2 does not list {} yet", created.volume_id);
                    Err(StorageError::in_progress(message))
                }
                _ => Ok(TokenOutcome::UsedUp),
            }
        },
    )?;
    let id = &created.volume_id;
    wait_until(|| match ec2.find_volume(id)? {
        Some(volume) if volume.status == "creating" => Ok(None),
        Some(volume) if volume.status != "error" => Ok(Some(volume.to_status().volume)),
        Some(_) => Err(StorageError::internal(format!("EC2 failed to create {id}"))),
        None => Err(StorageError::in_progress(format!(
            "EC2 no longer lists {id}: another call has deleted it, or its KMS key cannot be used (kmsKeyId)"
        ))),
    })
}

/// The zones of segments.
fn zones(segments: &[KeyValues]) -> impl Iterator<Item = &str> {
    segments.iter().flatten().filter(|(key, _)| key == ZONE_KEY).map(|(_, zone)| zone.as_str())
}

/// The capabilities as a text that does not depend on their order. Fails with `invalid-argument` if there
/// is none or EBS lacks one.
pub(crate) fn capabilities(requested: &[VolumeCapability]) -> Result<String> {
    let is_supported = |VolumeCapability { mode, access }: &VolumeCapability| match access {
        _ if mode.is_multi_node() || *mode == AccessMode::SingleNodeReaderOnly => false,
        AccessType::Filesystem(found) => matches!(found.fs_type.as_deref(), None | Some("ext4" | "xfs")),
        AccessType::Block => true,
    };
    let mut texts: Vec<_> = requested.iter().map(VolumeCapability::canonical_string).collect();
    if texts.is_empty() || !requested.iter().all(is_supported) {
        let expected = "expected writers on one node, of a block device, ext4 or xfs";
        return Err(StorageError::invalid_argument(format!("the capabilities are {texts:?}; {expected}")));
    }
    texts.sort();
    Ok(texts.join("; "))
}

/// Deletes a volume. Succeeds if it does not exist.
pub(crate) fn delete(handle: &str) -> Result<()> {
    let ec2 = Ec2::new()?;
    // The listing may lack a new volume, so it does not tell that there is nothing to delete.
    if !is_id("vol-", handle) {
        return Ok(());
    }
    let action = Action::new("DeleteVolume").set("VolumeId", handle);
    // `IncorrectState` while EC2 creates the volume, or deletes it for another call.
    let codes = ["InvalidVolume.NotFound", "InvalidVolumeID.Malformed", "IncorrectState"];
    if ec2.send::<Done>(&action, &codes)?.is_none() && ec2.find_volume(handle)?.is_some() {
        return Err(StorageError::in_progress(format!("EC2 does not delete {handle} yet")));
    }
    Ok(())
}

impl Restoring for EbsDriver {
    fn create_from_snapshot(request: CreateRequest, source: String) -> Result<Volume> {
        create(&request, Some(&source))
    }
}

impl Expansion for EbsDriver {
    fn expand(request: ExpandRequest) -> Result<ExpandResponse> {
        let ec2 = Ec2::new()?;
        let current = ec2.volume(&request.handle)?.bytes();
        let bytes = SIZES.grow(&request.capacity, current)?.unwrap_or(current);
        let change = Action::new("ModifyVolume").set("Size", bytes / GIB);
        let volume = ec2.modify(&request.handle, change, |volume| volume.bytes() >= bytes)?;
        let is_block = request.capability.is_some_and(|used| matches!(used.access, AccessType::Block));
        Ok(ExpandResponse { capacity_bytes: volume.bytes(), node_expansion: !is_block })
    }
}

impl Modification for EbsDriver {
    fn modify(handle: String, parameters: KeyValues) -> Result<()> {
        let wanted = read(ParameterReader::mutable_parameters(parameters), &MUTABLE)?;
        let change = Action::new("ModifyVolume").set_all(&wanted);
        Ec2::new()?.modify(&handle, change, |volume| volume.has(&wanted)).map(drop)
    }
}

impl Listing for EbsDriver {
    /// Lists the volumes that this driver has created, of all clusters.
    fn list_volumes(after: Option<String>, limit: Option<u32>) -> Result<VolumePage> {
        let volumes = Ec2::new()?.volumes("tag-key", tags::NAME)?;
        let page = paging::page(volumes, |volume| &volume.volume_id, after.as_deref(), limit)?;
        Ok(VolumePage { volumes: page.items.iter().map(xml::Volume::to_status).collect(), next: page.next })
    }
}

impl Ec2 {
    /// The volumes with a value of a filter, except deleted ones.
    pub(crate) fn volumes(&self, filter: &str, value: &str) -> Result<Vec<xml::Volume>> {
        let mut found: Vec<xml::Volume> =
            self.describe(&Action::describe("DescribeVolumes", filter, value))?;
        found.retain(|volume| !["deleting", "deleted"].contains(&&*volume.status));
        Ok(found)
    }

    /// Reads a volume. `None` if it does not exist.
    pub(crate) fn find_volume(&self, handle: &str) -> Result<Option<xml::Volume>> {
        let found = self.volumes("volume-id", handle)?;
        Ok(found.into_iter().find(|volume| volume.volume_id == handle))
    }

    /// Reads a volume. Fails with `not-found` if it does not exist.
    pub(crate) fn volume(&self, handle: &str) -> Result<xml::Volume> {
        let missing = || StorageError::not_found(format!("there is no volume {handle:?}"));
        self.find_volume(handle)?.ok_or_else(missing)
    }

    /// Sends ModifyVolume unless the volume is as wanted, and waits until the change has taken effect. EC2
    /// refuses a change while that of another call is running.
    fn modify(
        &self,
        handle: &str,
        change: Action,
        is_done: impl Fn(&xml::Volume) -> bool,
    ) -> Result<xml::Volume> {
        let modifications = Action::describe("DescribeVolumesModifications", "volume-id", handle);
        let has = |state: &str| -> Result<bool> {
            let found: Vec<xml::Modification> = self.describe(&modifications)?;
            Ok(found.iter().any(|found| found.modification_state == state))
        };
        wait_until(|| Ok((!has("modifying")?).then_some(())))?;
        if !is_done(&self.volume(handle)?)
            && let Err(error) = self.send::<Done>(&change.set("VolumeId", handle), &[])
            // Another call may have made the change, or a larger one.
            && !is_done(&self.volume(handle)?)
        {
            return Err(error);
        }
        wait_until(|| match self.volume(handle)? {
            volume if is_done(&volume) => Ok((!has("modifying")?).then_some(volume)),
            _ if has("failed")? => {
                Err(StorageError::internal(format!("EC2 failed to modify the volume {handle:?}")))
            }
            _ => Ok(None),
        })
    }
}

impl xml::Volume {
    fn bytes(&self) -> u64 {
        self.size.saturating_mul(GIB)
    }

    fn has(&self, wanted: &Ec2Parameters) -> bool {
        let Self { volume_type, iops, throughput, .. } = self;
        let number = |text: &String| text.parse::<u64>().ok();
        let is = |name: &str, found: &Option<String>| {
            let found = found.as_ref().and_then(number);
            wanted.get(name).is_none_or(|wanted| found.is_some() && found == number(wanted))
        };
        wanted.get("VolumeType").is_none_or(|wanted| wanted == volume_type)
            && is("Iops", iops)
            && is("Throughput", throughput)
    }

    fn owner(&self) -> Option<Owner> {
        let (reclaim_policy, [cluster_id, claim_uid, pv_name]) = tags::parse_owner(&self.tag_set)?;
        Some(Owner { cluster_id, claim_uid, pv_name, reclaim_policy })
    }

    fn to_status(&self) -> VolumeStatus {
        let zone = vec![(ZONE_KEY.to_owned(), self.availability_zone.clone())];
        VolumeStatus {
            volume: Volume { topology: vec![zone], ..Volume::new(&self.volume_id, self.bytes()) },
            owner: self.owner(),
            published_nodes: self.attachment_set.iter().map(|found| self.node(found).to_owned()).collect(),
            condition: None,
            changed_at_ms: u64::try_from(self.create_time.as_millis()).ok(),
        }
    }
}
