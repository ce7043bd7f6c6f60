//! NodeStageVolume and NodeUnstageVolume.

use std::collections::BTreeSet;

use super::{Node, Stage};
use crate::{
    attachment::Attachment,
    error::{NodeError, Step as _},
    executor::{Executor, Job, unstage},
    machine::{FoundKind, Machine},
    path::Place,
    record::VolumeRecord,
};

impl<M: Machine> Node<M> {
    /// Makes a volume usable at its staging path. The same again is a success.
    ///
    /// # Errors
    /// [`NodeError`]; then what was done for a volume that was not staged before is undone: for kubelet a
    /// call that has failed has had no effect, and it does not unstage. What cannot be undone now, the same
    /// call again or [`Self::unstage`] goes on with.
    pub fn stage(&self, request: &Stage) -> Result<(), NodeError> {
        let place = self.roots.place("staging_target_path", &request.staging_path)?;
        let _turn = self.turns.begin(&request.volume);
        // In doubt it is somebody's.
        let occupied = self.occupied(&place).unwrap_or(true);
        let staged = self.stage_at(request, &place);
        if staged.is_err() && !occupied {
            // The reason of the failure is what the caller needs.
            let _ = self.give_up(&request.volume, &place);
        }
        staged
    }

    /// Whether something is mounted at a staging path, or on the device's file in it.
    fn occupied(&self, place: &Place) -> Result<bool, NodeError> {
        Ok(self.is_mounted(place)?
            || (self.look(place)?.is_some() && self.is_mounted(&place.join(crate::executor::BLOCK))?))
    }

    /// Undoes what a call has done that failed, unless the volume was staged before.
    fn give_up(&self, volume: &str, place: &Place) -> Result<(), NodeError> {
        let Some(record) = self.record(volume)? else { return Ok(()) };
        let records = self.machine.records().step("read the volumes' records")?.readable;
        if record.staged || !record.targets.is_empty() || record.staging.as_ref() != Some(&place.to_string())
        {
            return Ok(());
        }
        unstage(&self.machine, place, Some(&record), &records)?;
        // That a device was begun to be formatted has to be known the next time.
        if record.formatting {
            Ok(())
        } else {
            self.machine.forget(volume).step("forget the volume's record")
        }
    }

    fn stage_at(&self, request: &Stage, place: &Place) -> Result<(), NodeError> {
        let attachment = Attachment::parse(&request.attachment).map_err(NodeError::Invalid)?;
        let executor = self.policy.executor(attachment)?;
        executor.supports(&request.capability)?;
        match self.look(place)?.map(|found| found.kind) {
            Some(FoundKind::Directory) => {}
            Some(FoundKind::File(_) | FoundKind::Device(_) | FoundKind::Other) | None => {
                return Err(NodeError::Precondition(format!(
                    "the staging path {place} is not there: expected a directory that kubelet has made"
                )));
            }
        }
        let record = self.take(&*executor, request, place)?;
        self.run(&*executor, request, place, record)
    }

    /// Takes what the volume is on this machine for it alone; it stands in the record when this returns.
    fn take(
        &self,
        executor: &dyn Executor,
        request: &Stage,
        place: &Place,
    ) -> Result<VolumeRecord, NodeError> {
        // From what is read until what is written no other volume takes anything.
        let turns = self.turns.lock();
        let others = self.machine.records().step("read the volumes' records")?;
        let others = others.complete().step("read the volumes' records")?;
        let mut record = self.begin(request, place, &others)?;
        executor.identify(&self.machine, &mut record)?;
        self.alone(&record, &others, &turns)?;
        let known = others.iter().find(|other| other.volume == record.volume);
        if known != Some(&record) {
            self.machine.keep(&record).step("keep the volume's record")?;
        }
        Ok(record)
    }

    fn run(
        &self,
        executor: &dyn Executor,
        request: &Stage,
        place: &Place,
        record: VolumeRecord,
    ) -> Result<(), NodeError> {
        let mut job = Job {
            machine: &self.machine,
            place,
            record,
            least: self.policy.least(),
            filesystems: &self.policy.filesystems,
            cloned: request.cloned,
        };
        executor.stage(&mut job)?;
        if !job.record.staged {
            job.record.staged = true;
            job.keep()?;
        }
        Ok(())
    }

    /// The record to go on with: the one that is there if it says the same, a new one if nothing of it is
    /// left on the machine.
    fn begin(
        &self,
        request: &Stage,
        place: &Place,
        others: &[VolumeRecord],
    ) -> Result<VolumeRecord, NodeError> {
        let staging = place.to_string();
        let fresh = VolumeRecord {
            volume: request.volume.clone(),
            staging: Some(staging.clone()),
            attachment: Some(request.attachment.clone()),
            capability: request.capability.clone(),
            size: None,
            image: None,
            device: None,
            formatting: false,
            staged: false,
            targets: Default::default(),
        };
        let there = others.iter().find(|other| other.volume == request.volume);
        let Some(there) = there else { return Ok(fresh) };
        let same = there.staging == fresh.staging
            && there.attachment == fresh.attachment
            && there.capability == fresh.capability;
        let is_live = self.staged_at(there)?.is_some() || !self.live_targets(there)?.is_empty();
        if same {
            let again = there.clone();
            // Of a life before the last reboot: a call that fails now has staged nothing.
            return Ok(if is_live {
                again
            } else {
                VolumeRecord { staged: false, targets: fresh.targets, ..again }
            });
        }
        let at = there.staging.as_deref().unwrap_or("no staging path");
        if is_live {
            return Err(if there.staging == fresh.staging {
                NodeError::Exists(format!("the volume is staged at {at} in another way"))
            } else {
                NodeError::Precondition(format!(
                    "the volume is staged at {at}: expected it to be unstaged first"
                ))
            });
        }
        if let Some(old) = &there.staging {
            let old = self.roots.place("staging_target_path", old)?;
            unstage(&self.machine, &old, Some(there), others)?;
        }
        // A device that was begun to be formatted is still not more than that.
        let formatting = there.formatting && there.attachment == fresh.attachment;
        Ok(VolumeRecord { formatting, ..fresh })
    }

    /// Refuses what another volume of this node has: its staging path, its image, its device.
    fn alone(
        &self,
        record: &VolumeRecord,
        others: &[VolumeRecord],
        turns: &BTreeSet<String>,
    ) -> Result<(), NodeError> {
        for other in others.iter().filter(|other| other.volume != record.volume) {
            let shares = (record.image.is_some() && record.image == other.image)
                || (record.device.is_some() && record.device == other.device)
                || record.staging == other.staging;
            let is_live = || -> Result<bool, NodeError> {
                Ok(turns.contains(&other.volume)
                    || self.staged_at(other)?.is_some()
                    || !self.live_targets(other)?.is_empty())
            };
            if shares && is_live()? {
                return Err(NodeError::Precondition(
                    "another volume of this node has the same storage, or is staged at the same path"
                        .to_owned(),
                ));
            }
        }
        Ok(())
    }

    /// Undoes [`Self::stage`]. A volume that is not staged is a success; no data is removed.
    ///
    /// # Errors
    /// [`NodeError::Precondition`] while it is published.
    pub fn unstage(&self, volume: &str, staging_path: &str) -> Result<(), NodeError> {
        let place = self.roots.place("staging_target_path", staging_path)?;
        let _turn = self.turns.begin(volume);
        let others = self.machine.records().step("read the volumes' records")?.readable;
        let staging = place.to_string();
        let foreign = |other: &&VolumeRecord| {
            other.volume != volume && other.staging.as_deref() == Some(staging.as_str())
        };
        if others.iter().any(|other| foreign(&other)) {
            return Err(NodeError::Missing(format!("another volume is staged at {place}")));
        }
        // One that cannot be read is not as good as none: it may have a device.
        let record = self.record(volume)?;
        if let Some(record) = &record {
            if record.staging.as_deref() != Some(staging.as_str()) {
                let at = record.staging.as_deref().unwrap_or("no staging path");
                return Err(NodeError::Precondition(format!("the volume is staged at {at}, not at {place}")));
            }
            if let Some(target) = self.live_targets(record)?.first() {
                return Err(NodeError::Precondition(format!("the volume is still published at {target}")));
            }
        }
        let block = place.join(crate::executor::BLOCK);
        for at in [&place, &block] {
            let elsewhere = self.elsewhere(at, &place)?;
            if let Some(other) = elsewhere.first() {
                return Err(NodeError::Precondition(format!(
                    "what is mounted at {at} is still mounted at {other}"
                )));
            }
        }
        unstage(&self.machine, &place, record.as_ref(), &others)?;
        if record.is_some() {
            self.machine.forget(volume).step("forget the volume's record")?;
        }
        Ok(())
    }

    /// Where else something that is mounted at `at` is mounted, within a directory that is itself no mount.
    fn elsewhere(&self, at: &Place, staging: &Place) -> Result<Vec<String>, NodeError> {
        // Within a mounted filesystem the device's file is the user's.
        if at != staging && self.is_mounted(staging)? {
            return Ok(Vec::new());
        }
        if self.look(staging)?.is_none() || !self.is_mounted(at)? {
            return Ok(Vec::new());
        }
        self.machine.mounted_elsewhere(at).step("look for other mounts of the volume")
    }
}
