//! NodePublishVolume and NodeUnpublishVolume.

use cofferdam_domain::storage::{AccessType, CsiAccessMode, VolumeCapability};

use super::{Node, Publish, PublishInline};
use crate::{
    error::{NodeError, Step as _},
    executor::{filesystem_only, is_memory, memory_name, reads_only, restrict},
    machine::{Attributes, Found, FoundKind, Machine, Source},
    options::{MountOptions, Of},
    path::Place,
    record::{Target, VolumeRecord},
};

/// Whether a volume may be published at several targets of one node.
const fn many_targets(mode: CsiAccessMode) -> bool {
    match mode {
        CsiAccessMode::MultiNodeReaderOnly
        | CsiAccessMode::MultiNodeSingleWriter
        | CsiAccessMode::MultiNodeMultiWriter
        | CsiAccessMode::SingleNodeMultiWriter => true,
        CsiAccessMode::SingleNodeWriter
        | CsiAccessMode::SingleNodeReaderOnly
        | CsiAccessMode::SingleNodeSingleWriter => false,
    }
}

/// The group that a capability names.
fn group(capability: &VolumeCapability) -> Result<Option<u32>, NodeError> {
    let name = match &capability.access_type {
        AccessType::Filesystem { mount_group, .. } => mount_group.as_deref().filter(|name| !name.is_empty()),
        AccessType::Block => None,
    };
    let bad =
        |name| NodeError::Invalid(format!("volume_mount_group is {name:?}: expected the number of a group"));
    // The last number is what the kernel takes for "no change".
    let number = |name: &str| name.parse::<u32>().ok().filter(|group| *group != u32::MAX);
    name.map(|name| number(name).ok_or_else(|| bad(name))).transpose()
}

impl<M: Machine> Node<M> {
    /// Publishes a staged volume at a target. The same again is a success.
    ///
    /// # Errors
    /// [`NodeError`]; then what was done is undone, unless the volume was published there before: for kubelet
    /// a call that has failed has had no effect, and it does not unpublish. What cannot be undone now, the
    /// same call again or [`Self::unpublish`] goes on with.
    pub fn publish(&self, request: &Publish) -> Result<(), NodeError> {
        let target = self.roots.place("target_path", &request.target_path)?;
        self.or_nothing(&request.volume, &target, || self.publish_at(request, &target))
    }

    /// Publishes, and undoes what a publication has done that failed.
    fn or_nothing(
        &self,
        volume: &str,
        target: &Place,
        publish: impl FnOnce() -> Result<(), NodeError>,
    ) -> Result<(), NodeError> {
        // In doubt it is somebody's.
        let occupied = self.is_mounted(target).unwrap_or(true);
        let published = publish();
        if published.is_err() && !occupied {
            let admitted = |record: VolumeRecord| record.targets.contains_key(&target.to_string());
            if self.record(volume).is_ok_and(|record| record.is_some_and(admitted)) {
                // The reason of the failure is what the caller needs.
                let _ = self.unpublish(volume, &target.to_string());
            }
        }
        published
    }

    fn publish_at(&self, request: &Publish, target: &Place) -> Result<(), NodeError> {
        let staging = self.roots.place("staging_target_path", &request.staging_path)?;
        let group = group(&request.capability)?;
        let not_staged = || NodeError::Precondition(format!("the volume is not staged at {staging}"));
        let record = self.record(&request.volume)?.filter(|record| record.staged).ok_or_else(not_staged)?;
        if record.staging.as_deref() != Some(staging.to_string().as_str()) {
            return Err(not_staged());
        }
        let (source, staged) = self.staged_at(&record)?.ok_or_else(not_staged)?;
        let block = matches!(record.capability.access_type, AccessType::Block);
        if block != matches!(request.capability.access_type, AccessType::Block) {
            return Err(NodeError::Exists("the volume is staged with the other type of access".to_owned()));
        }
        let read_only = request.read_only
            || reads_only(request.capability.access_mode)
            || reads_only(record.capability.access_mode);
        let wanted = Target { capability: request.capability.clone(), read_only: request.read_only };
        let record = self.admit(record, target, wanted)?;
        self.make_target(target, block)?;
        self.bind_target(&source, &staged, target)?;
        if read_only {
            restrict(&self.machine, target, Attributes { read_only, ..Attributes::default() })?;
        }
        // What is staged for reading, as `none` always is, takes no group either.
        let writable = staged.mounts.last().is_some_and(|top| !top.attributes.read_only) && !read_only;
        if let Some(group) = group.filter(|_| writable && !block) {
            self.give(target, group)?;
        }
        tracing::debug!(volume = record.volume, %target, "published");
        Ok(())
    }

    /// CSI's table of second publications; what is admitted stands in the record when this returns.
    fn admit(
        &self,
        mut record: VolumeRecord,
        target: &Place,
        wanted: Target,
    ) -> Result<VolumeRecord, NodeError> {
        let path = target.to_string();
        if record.targets.get(&path) == Some(&wanted) {
            return Ok(record);
        }
        let live = self.live_targets(&record)?;
        if record.targets.contains_key(&path) && live.contains(&path) {
            return Err(NodeError::Exists(format!("the volume is published at {target} in another way")));
        }
        if let Some(other) = live.iter().find(|other| **other != path)
            && !many_targets(wanted.capability.access_mode)
        {
            return Err(NodeError::Precondition(format!(
                "the volume is published at {other}, and its access mode allows one target"
            )));
        }
        self.nobodys(&record.volume, target)?;
        record.targets.insert(path, wanted);
        self.machine.keep(&record).step("keep the volume's record")?;
        Ok(record)
    }

    /// Refuses a target that another volume has.
    fn nobodys(&self, volume: &str, target: &Place) -> Result<(), NodeError> {
        let path = target.to_string();
        let others = self.machine.records().step("read the volumes' records")?.readable;
        let taken = others.iter().any(|other| other.volume != volume && other.targets.contains_key(&path));
        if taken {
            return Err(NodeError::Precondition(format!("another volume is published at {target}")));
        }
        Ok(())
    }

    fn make_target(&self, target: &Place, block: bool) -> Result<(), NodeError> {
        match self.look(target)? {
            None if block => self.machine.make_file(target).step("make the target's file"),
            None => self.machine.make_directory(target).step("make the target's directory"),
            Some(found) => match found.kind {
                FoundKind::Directory if !block => Ok(()),
                FoundKind::File(_) | FoundKind::Device(_) if block => Ok(()),
                FoundKind::Directory | FoundKind::File(_) | FoundKind::Device(_) | FoundKind::Other => {
                    let expected = if block { "a file" } else { "a directory" };
                    Err(NodeError::Precondition(format!("{target} is something else: expected {expected}")))
                }
            },
        }
    }

    fn bind_target(&self, source: &Place, staged: &Found, target: &Place) -> Result<(), NodeError> {
        let there = self.look(target)?.filter(|found| !found.mounts.is_empty());
        match there {
            None => self
                .machine
                .bind(&Source::Place(source.clone()), target)
                .step("bind the volume to its target"),
            Some(there) if there.id == staged.id && there.kind == staged.kind => Ok(()),
            Some(_) => Err(NodeError::Precondition(format!("something else is mounted at {target}"))),
        }
    }

    /// Lets a group write, unless it may already.
    fn give(&self, place: &Place, group: u32) -> Result<(), NodeError> {
        if self.machine.group(place).step("look at the volume's group")? == Some(group) {
            return Ok(());
        }
        self.machine.set_group(place, group).step("give the volume to its group")
    }

    /// Publishes a volume that a pod describes by itself: memory of the node, and nothing else.
    ///
    /// # Errors
    /// [`NodeError::Denied`] unless the policy has inline volumes; otherwise as [`Self::publish`].
    pub fn publish_inline(&self, request: &PublishInline) -> Result<(), NodeError> {
        let target = self.roots.place("target_path", &request.target_path)?;
        self.or_nothing(&request.volume, &target, || self.publish_memory(request, &target))
    }

    fn publish_memory(&self, request: &PublishInline, target: &Place) -> Result<(), NodeError> {
        let Some(most) = self.policy.inline.tmpfs_most else {
            return Err(NodeError::Denied("inline volumes are not allowed on this node".to_owned()));
        };
        let size = request.size.unwrap_or(most);
        if size == 0 || size > most {
            return Err(NodeError::Denied(format!(
                "an inline volume of {size} bytes is not allowed on this node: expected 1 to {most}"
            )));
        }
        filesystem_only("an inline volume", &request.capability)?;
        let group = group(&request.capability)?;
        let flags = match &request.capability.access_type {
            AccessType::Filesystem { mount_flags, .. } => mount_flags.as_slice(),
            AccessType::Block => &[],
        };
        let options = MountOptions::read(flags, Of::Memory, self.policy.least())?;
        self.admit_inline(request, size, target)?;
        self.make_target(target, false)?;
        let name = memory_name(&request.volume);
        match self.look(target)?.filter(|found| !found.mounts.is_empty()) {
            None => {
                self.machine.mount_memory(&name, size, &options, target).step("mount the volume's memory")?
            }
            Some(found) if is_memory(&found, &name) => {}
            Some(_) => {
                return Err(NodeError::Precondition(format!("something else is mounted at {target}")));
            }
        }
        if let Some(group) = group {
            self.give(target, group)?;
        }
        let read_only = request.read_only || reads_only(request.capability.access_mode);
        restrict(&self.machine, target, Attributes { read_only, ..options.attributes })
    }

    fn admit_inline(&self, request: &PublishInline, size: u64, target: &Place) -> Result<(), NodeError> {
        let path = target.to_string();
        let wanted = Target { capability: request.capability.clone(), read_only: request.read_only };
        let fresh = VolumeRecord {
            volume: request.volume.clone(),
            staging: None,
            attachment: None,
            capability: request.capability.clone(),
            size: Some(size),
            image: None,
            device: None,
            formatting: false,
            staged: false,
            targets: [(path.clone(), wanted)].into(),
        };
        match self.record(&request.volume)? {
            Some(there) if there == fresh => return Ok(()),
            Some(there) => {
                if let Some(live) = self.live_targets(&there)?.first() {
                    return Err(if *live == path {
                        NodeError::Exists(format!("the volume is published at {target} in another way"))
                    } else {
                        NodeError::Precondition(format!("the inline volume is published at {live}"))
                    });
                }
            }
            None => {}
        }
        self.nobodys(&request.volume, target)?;
        self.machine.keep(&fresh).step("keep the volume's record")
    }

    /// Undoes a publication and removes the target. A volume that is not published there is a success; no
    /// data is removed.
    ///
    /// # Errors
    /// [`NodeError::Missing`] when the target is another volume's.
    pub fn unpublish(&self, volume: &str, target_path: &str) -> Result<(), NodeError> {
        let target = self.roots.place("target_path", target_path)?;
        let path = target.to_string();
        let records = self.machine.records().step("read the volumes' records")?.readable;
        let is_at = |record: &VolumeRecord| {
            record.targets.contains_key(&path) || record.staging.as_deref() == Some(path.as_str())
        };
        // What is mounted at the target can go without the record; that of one that cannot be read stays for
        // whoever can.
        let own = self.record(volume).unwrap_or_else(|error| {
            tracing::warn!(volume, %error, "a volume is unpublished whose record cannot be read");
            None
        });
        if records.iter().any(|record| record.volume != volume && is_at(record))
            || own.as_ref().is_some_and(|record| record.staging.as_deref() == Some(path.as_str()))
        {
            return Err(NodeError::Missing(format!("the volume is not published at {target}")));
        }
        self.clear(&target)?;
        let Some(mut record) = own else { return Ok(()) };
        if record.targets.remove(&path).is_none() {
            return Ok(());
        }
        if record.staging.is_none() && record.targets.is_empty() {
            self.machine.forget(volume).step("forget the volume's record")
        } else {
            self.machine.keep(&record).step("keep the volume's record")
        }
    }
}
