//! NodeGetVolumeStats and NodeExpandVolume.

use cofferdam_domain::storage::AccessType;

use super::Node;
use crate::{
    attachment::Attachment,
    error::{NodeError, Step as _},
    executor::reads_only,
    machine::{Found, FoundKind, Machine, Usage},
    path::Place,
    record::VolumeRecord,
};

/// Whether a volume can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Whether something is wrong with it.
    pub abnormal: bool,
    /// What, for people.
    pub message: String,
}

/// Answer of NodeGetVolumeStats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// How full it is; a raw device has its size alone.
    pub usage: Usage,
    /// Whether it is a raw device.
    pub block: bool,
    /// Whether it can be used.
    pub health: Health,
}

/// Arguments of NodeExpandVolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expand {
    /// The volume's handle.
    pub volume: String,
    /// Where it is staged or published.
    pub volume_path: String,
    /// At least this many bytes, where the caller says it.
    pub required: Option<u64>,
    /// At most this many bytes, where the caller says it.
    pub limit: Option<u64>,
    /// Whether the driver says each time it publishes the volume how it is reached, and so how large it has
    /// become.
    pub published: bool,
}

impl<M: Machine> Node<M> {
    /// The record of a volume, and one of its own paths.
    fn known(&self, volume: &str, path: &str) -> Result<(VolumeRecord, Place), NodeError> {
        let missing = || NodeError::Missing("the volume is not on this node".to_owned());
        let record = self.record(volume)?.ok_or_else(missing)?;
        let elsewhere = || NodeError::Missing(format!("the volume is not at {path:?}"));
        let place = self.roots.place("volume_path", path).map_err(|_| elsewhere())?;
        let spelled = place.to_string();
        let own =
            record.targets.contains_key(&spelled) || record.staging.as_deref() == Some(spelled.as_str());
        if own { Ok((record, place)) } else { Err(elsewhere()) }
    }

    /// How full a volume is, and whether it can be used.
    ///
    /// # Errors
    /// [`NodeError::Missing`] for a volume that is not at the path.
    pub fn statistics(&self, volume: &str, path: &str) -> Result<Statistics, NodeError> {
        let (record, place) = self.known(volume, path)?;
        let block = matches!(record.capability.access_type, AccessType::Block);
        let staged = record.staging.as_deref() == Some(place.to_string().as_str());
        let at = if block && staged { place.join(crate::executor::BLOCK) } else { place.clone() };
        let found = self.look(&at)?.filter(|found| !found.mounts.is_empty());
        let Some(found) = found else {
            return Err(NodeError::Missing(format!("nothing is mounted at {at}")));
        };
        let health = health(&record, &found);
        let usage = if let FoundKind::Device(number) = found.kind {
            let total = self.machine.device_size(number).step("measure the volume's device")?;
            Usage { total, ..Usage::default() }
        } else {
            self.machine.usage(&at).step("measure the volume's filesystem")?
        };
        Ok(Statistics { usage, block, health })
    }

    /// Makes a volume on this node as large as its storage has become; returns its size in bytes where it is
    /// known.
    ///
    /// # Errors
    /// [`NodeError::Range`] when its storage is smaller than what is asked for.
    pub fn expand(&self, request: &Expand) -> Result<Option<u64>, NodeError> {
        let (record, _) = self.known(&request.volume, &request.volume_path)?;
        if let (Some(required), Some(limit)) = (request.required, request.limit)
            && required > limit
        {
            return Err(NodeError::Invalid(format!(
                "capacity_range asks for {required} to {limit} bytes: expected the first not above the second"
            )));
        }
        let Some(attachment) = &record.attachment else {
            return Err(NodeError::Precondition("an inline volume does not grow".to_owned()));
        };
        let attachment = Attachment::parse(attachment).map_err(NodeError::Invalid)?;
        if matches!(attachment, Attachment::Tmpfs { .. }) && !request.published {
            return Err(NodeError::Precondition(
                "memory whose size was said once, when the volume was created, does not grow: it would be small again when \
                 it is staged the next time"
                    .to_owned(),
            ));
        }
        let executor = self.policy.executor(attachment)?;
        let (place, _) = self
            .staged_at(&record)?
            .ok_or_else(|| NodeError::Precondition("the volume is not staged on this node".to_owned()))?;
        let size = executor.expand(&self.machine, &record, &place, request.required)?;
        match size.zip(request.limit).filter(|(size, limit)| size > limit) {
            Some((size, limit)) => Err(NodeError::Range(format!(
                "the volume has {size} bytes already: expected a limit of at least that, not {limit}"
            ))),
            None => Ok(size),
        }
    }
}

/// What a mount tells of its volume.
fn health(record: &VolumeRecord, found: &Found) -> Health {
    let gone_read_only = found.mounts.last().is_some_and(|top| top.filesystem_read_only)
        && !reads_only(record.capability.access_mode);
    let asked_for = match &record.capability.access_type {
        AccessType::Filesystem { mount_flags, .. } => {
            mount_flags.iter().any(|flags| flags.split(',').any(|flag| flag == "ro"))
        }
        AccessType::Block => true,
    };
    // `none` is read-only by nature.
    let by_nature = record.attachment.as_ref().is_some_and(|attachment| attachment.kind == "none");
    if gone_read_only && !asked_for && !by_nature {
        return Health {
            abnormal: true,
            message: "the filesystem has become read-only: its storage may have failed".to_owned(),
        };
    }
    Health { abnormal: false, message: "mounted".to_owned() }
}
