//! Abilities and features of a driver, and the CSI capabilities computed from them.

use std::{collections::BTreeSet, fmt};

pub use super::feature::Feature;
use crate::storage::Description;

/// An optional part of the driver interface. A WebAssembly component has the ability if it exports the
/// interface of this name. For an existing CSI driver, the ability is derived from the CSI capabilities that
/// the driver reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ability {
    /// Creates volumes from another volume.
    Cloning,
    /// Creates volumes from a snapshot.
    Restoring,
    /// Attaches volumes to nodes and detaches them (ControllerPublishVolume, ControllerUnpublishVolume).
    Publishing,
    /// Expands volumes (ControllerExpandVolume).
    Expansion,
    /// Changes mutable parameters of volumes (ControllerModifyVolume).
    Modification,
    /// Creates, deletes, returns and lists snapshots.
    Snapshots,
    /// Creates, deletes and returns groups of snapshots of several volumes at one point in time.
    GroupSnapshots,
    /// Lists all volumes.
    Listing,
    /// Returns the status of one volume.
    Inspection,
    /// Reports the available capacity.
    Capacity,
}

impl Ability {
    /// All abilities.
    pub const ALL: [Self; 10] = [
        Self::Cloning,
        Self::Restoring,
        Self::Publishing,
        Self::Expansion,
        Self::Modification,
        Self::Snapshots,
        Self::GroupSnapshots,
        Self::Listing,
        Self::Inspection,
        Self::Capacity,
    ];

    /// Name of the WIT interface.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cloning => "cloning",
            Self::Restoring => "restoring",
            Self::Publishing => "publishing",
            Self::Expansion => "expansion",
            Self::Modification => "modification",
            Self::Snapshots => "snapshots",
            Self::GroupSnapshots => "group-snapshots",
            Self::Listing => "listing",
            Self::Inspection => "inspection",
            Self::Capacity => "capacity",
        }
    }

    /// The ability of a WIT interface; `None` for an interface that is no ability.
    pub fn from_interface(interface: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ability| ability.as_str() == interface)
    }
}

impl fmt::Display for Ability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// CSI `ControllerServiceCapability.RPC.Type`, with CSI's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(i32)]
#[expect(missing_docs, reason = "CSI's own names, documented there")]
pub enum ControllerCapability {
    CreateDeleteVolume = 1,
    PublishUnpublishVolume = 2,
    ListVolumes = 3,
    GetCapacity = 4,
    CreateDeleteSnapshot = 5,
    ListSnapshots = 6,
    CloneVolume = 7,
    PublishReadonly = 8,
    ExpandVolume = 9,
    ListVolumesPublishedNodes = 10,
    VolumeCondition = 11,
    GetVolume = 12,
    SingleNodeMultiWriter = 13,
    ModifyVolume = 14,
    GetSnapshot = 15,
}

impl ControllerCapability {
    /// The name in CSI, as printed by `backend inspect`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CreateDeleteVolume => "CREATE_DELETE_VOLUME",
            Self::PublishUnpublishVolume => "PUBLISH_UNPUBLISH_VOLUME",
            Self::ListVolumes => "LIST_VOLUMES",
            Self::GetCapacity => "GET_CAPACITY",
            Self::CreateDeleteSnapshot => "CREATE_DELETE_SNAPSHOT",
            Self::ListSnapshots => "LIST_SNAPSHOTS",
            Self::CloneVolume => "CLONE_VOLUME",
            Self::PublishReadonly => "PUBLISH_READONLY",
            Self::ExpandVolume => "EXPAND_VOLUME",
            Self::ListVolumesPublishedNodes => "LIST_VOLUMES_PUBLISHED_NODES",
            Self::VolumeCondition => "VOLUME_CONDITION",
            Self::GetVolume => "GET_VOLUME",
            Self::SingleNodeMultiWriter => "SINGLE_NODE_MULTI_WRITER",
            Self::ModifyVolume => "MODIFY_VOLUME",
            Self::GetSnapshot => "GET_SNAPSHOT",
        }
    }
}

/// The CSI 1.12 controller capabilities that the abilities and the features of a driver imply. Cofferdam's
/// csi-server reports them for a WebAssembly component. For an existing CSI driver, it reports those of them
/// that the driver reports.
///
/// A feature without the ability that it extends is ignored: PUBLISH_READONLY, for example, requires
/// [`Ability::Publishing`].
pub fn controller_capabilities(
    abilities: &BTreeSet<Ability>,
    description: &Description,
) -> BTreeSet<ControllerCapability> {
    use ControllerCapability as Csi;
    let can = |ability| abilities.contains(&ability);
    let can_report_status = can(Ability::Listing) || can(Ability::Inspection);
    let has = |feature| description.has_feature(feature);
    #[rustfmt::skip] // one row a capability
    let rows = [
        (Csi::CreateDeleteVolume,        true),
        (Csi::PublishUnpublishVolume,    can(Ability::Publishing)),
        (Csi::ListVolumes,               can(Ability::Listing)),
        (Csi::GetCapacity,               can(Ability::Capacity)),
        (Csi::CreateDeleteSnapshot,      can(Ability::Snapshots)),
        (Csi::ListSnapshots,             can(Ability::Snapshots)),
        (Csi::CloneVolume,               can(Ability::Cloning)),
        (Csi::PublishReadonly,           can(Ability::Publishing) && has(Feature::PublishReadonly)),
        (Csi::ExpandVolume,              can(Ability::Expansion)),
        (Csi::ListVolumesPublishedNodes,
            can(Ability::Listing) && can(Ability::Publishing) && has(Feature::PublishedNodes)),
        (Csi::VolumeCondition,           can_report_status && has(Feature::VolumeCondition)),
        (Csi::GetVolume,                 can(Ability::Inspection)),
        (Csi::SingleNodeMultiWriter,     has(Feature::SingleNodeMultiWriter)),
        (Csi::ModifyVolume,              can(Ability::Modification)),
        (Csi::GetSnapshot,               can(Ability::Snapshots)),
    ];
    rows.into_iter().filter(|(_, has)| *has).map(|(capability, _)| capability).collect()
}

/// CSI `PluginCapability`: services and volume expansion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PluginCapability {
    /// `CONTROLLER_SERVICE`
    ControllerService,
    /// `VOLUME_ACCESSIBILITY_CONSTRAINTS`
    AccessibilityConstraints,
    /// `GROUP_CONTROLLER_SERVICE`
    GroupControllerService,
    /// `VolumeExpansion.ONLINE`
    OnlineExpansion,
    /// `VolumeExpansion.OFFLINE`
    OfflineExpansion,
}

impl PluginCapability {
    /// The name in CSI.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ControllerService => "CONTROLLER_SERVICE",
            Self::AccessibilityConstraints => "VOLUME_ACCESSIBILITY_CONSTRAINTS",
            Self::GroupControllerService => "GROUP_CONTROLLER_SERVICE",
            Self::OnlineExpansion => "ONLINE",
            Self::OfflineExpansion => "OFFLINE",
        }
    }
}

/// The CSI 1.12 plugin capabilities that the abilities and the description of a driver imply. Cofferdam's
/// csi-server reports them for a WebAssembly component. For an existing CSI driver, it reports those of them
/// that the driver reports.
pub fn plugin_capabilities(
    abilities: &BTreeSet<Ability>,
    description: &Description,
) -> BTreeSet<PluginCapability> {
    let expands = abilities.contains(&Ability::Expansion);
    let online = description.has_feature(Feature::OnlineExpansion);
    #[rustfmt::skip] // one row a capability
    let rows = [
        (PluginCapability::ControllerService,        true),
        (PluginCapability::AccessibilityConstraints, !description.topology_keys.is_empty()),
        (PluginCapability::GroupControllerService,   abilities.contains(&Ability::GroupSnapshots)),
        (PluginCapability::OnlineExpansion,          expands && online),
        (PluginCapability::OfflineExpansion,         expands && !online),
    ];
    rows.into_iter().filter(|(_, has)| *has).map(|(capability, _)| capability).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Placement;

    fn description(features: &[Feature]) -> Description {
        Description {
            name: "x.example".into(),
            version: "1".to_owned(),
            topology_keys: Vec::new(),
            placement: Placement::Central,
            volumes_per_node: None,
            features: features.iter().map(ToString::to_string).collect(),
        }
    }

    fn capability_numbers(abilities: &[Ability], features: &[Feature]) -> Vec<i32> {
        controller_capabilities(&abilities.iter().copied().collect(), &description(features))
            .into_iter()
            .map(|capability| capability as i32)
            .collect()
    }

    #[test]
    fn controller_capabilities_follow_exports_and_features() {
        use Ability::{
            Capacity, Cloning, Expansion, Inspection, Listing, Modification, Publishing, Restoring, Snapshots,
        };
        use Feature::{PublishReadonly, PublishedNodes, SingleNodeMultiWriter, VolumeCondition};
        #[rustfmt::skip] // one row a case
        let table: [(&[Ability], &[Feature], &[i32]); 13] = [
            (&[],                        &[],                      &[1]),
            (&[Publishing],              &[],                      &[1, 2]),
            (&[Publishing],              &[PublishReadonly],       &[1, 2, 8]),
            (&[],                        &[PublishReadonly],       &[1]),
            (&[Listing],                 &[PublishedNodes],        &[1, 3]),
            (&[Listing, Publishing],     &[PublishedNodes],        &[1, 2, 3, 10]),
            (&[Inspection],              &[VolumeCondition],       &[1, 11, 12]),
            (&[],                        &[VolumeCondition],       &[1]),
            (&[Snapshots, Restoring],    &[],                      &[1, 5, 6, 15]),
            (&[Cloning, Expansion],      &[],                      &[1, 7, 9]),
            (&[Modification, Capacity],  &[],                      &[1, 4, 14]),
            (&[],                        &[SingleNodeMultiWriter], &[1, 13]),
            (&Ability::ALL,              &Feature::ALL,            &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
                13, 14, 15]),
        ];
        for (abilities, features, expected) in table {
            assert_eq!(capability_numbers(abilities, features), expected, "{abilities:?} {features:?}");
        }
    }

    #[test]
    fn plugin_capabilities_report_online_or_offline_expansion() {
        let plugin = |abilities: &[Ability], features: &[Feature]| {
            plugin_capabilities(&abilities.iter().copied().collect(), &description(features))
        };
        use PluginCapability::{
            ControllerService, GroupControllerService, OfflineExpansion, OnlineExpansion,
        };
        assert_eq!(plugin(&[], &[Feature::OnlineExpansion]), [ControllerService].into());
        assert_eq!(plugin(&[Ability::Expansion], &[]), [ControllerService, OfflineExpansion].into());
        assert_eq!(
            plugin(&[Ability::Expansion, Ability::GroupSnapshots], &[Feature::OnlineExpansion]),
            [ControllerService, GroupControllerService, OnlineExpansion].into()
        );
    }

    #[test]
    fn ability_names_round_trip() {
        for ability in Ability::ALL {
            assert_eq!(Ability::from_interface(ability.as_str()), Some(ability));
        }
        assert_eq!(Ability::from_interface("volumes"), None);
    }
}
