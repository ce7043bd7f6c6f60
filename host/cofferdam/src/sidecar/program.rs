//! The Go programs that the program can replace: sidecars, and snapshot-controller.

use std::{ffi::OsStr, path::Path};

use crate::config::FeatureGate;

/// Default of `--csi-address` in all sidecars.
const CSI_ADDRESS: &str = "/run/csi/socket";
/// The sidecars read the Secrets of every namespace, and have no flag to restrict them.
const SECRET_NAMESPACES: (&str, &str) = ("secret-namespaces", "*");

/// A Go sidecar, or snapshot-controller, whose command line the program accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sidecar {
    /// external-provisioner.
    Provisioner,
    /// external-attacher.
    Attacher,
    /// external-resizer.
    Resizer,
    /// external-snapshotter's csi-snapshotter.
    Snapshotter,
    /// external-snapshotter's snapshot-controller, which runs once in a cluster, without a driver.
    SnapshotController,
    /// node-driver-registrar.
    Registrar,
    /// livenessprobe.
    LivenessProbe,
}

impl Sidecar {
    /// All sidecars.
    pub(crate) const ALL: [Self; 7] = [
        Self::Provisioner,
        Self::Attacher,
        Self::Resizer,
        Self::Snapshotter,
        Self::SnapshotController,
        Self::Registrar,
        Self::LivenessProbe,
    ];

    /// Name of the sidecar's program.
    pub(crate) const fn program(self) -> &'static str {
        match self {
            Self::Provisioner => "csi-provisioner",
            Self::Attacher => "csi-attacher",
            Self::Resizer => "csi-resizer",
            Self::Snapshotter => "csi-snapshotter",
            Self::SnapshotController => "snapshot-controller",
            Self::Registrar => "csi-node-driver-registrar",
            Self::LivenessProbe => "livenessprobe",
        }
    }

    /// The sidecar with the program that `argv[0]` names, without its directory.
    pub(crate) fn from_program(program: &OsStr) -> Option<Self> {
        let name = Path::new(program).file_name()?;
        Self::ALL.into_iter().find(|sidecar| name == sidecar.program())
    }

    /// The role that replaces the sidecar.
    pub(super) const fn role(self) -> &'static str {
        match self {
            Self::Provisioner => "provisioner",
            Self::Attacher => "attacher",
            Self::Resizer => "resizer",
            Self::Snapshotter => "snapshotter",
            Self::SnapshotController => "snapshot-controller",
            Self::Registrar => "registrar",
            Self::LivenessProbe => "liveness",
        }
    }

    /// Settings whose default is the sidecar's.
    pub(super) const fn defaults(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Provisioner | Self::Resizer => &[
                ("csi-address", CSI_ADDRESS),
                ("timeout", "10s"),
                ("leader-election", "false"),
                SECRET_NAMESPACES,
            ],
            Self::Attacher => &[
                ("csi-address", CSI_ADDRESS),
                ("timeout", "15s"),
                ("leader-election", "false"),
                SECRET_NAMESPACES,
            ],
            Self::Snapshotter => &[
                ("csi-address", CSI_ADDRESS),
                ("timeout", "1m"),
                ("leader-election", "false"),
                SECRET_NAMESPACES,
            ],
            Self::SnapshotController => &[("leader-election", "false")],
            Self::Registrar => &[("csi-address", CSI_ADDRESS), ("probe-timeout", "1s")],
            Self::LivenessProbe => &[("csi-address", CSI_ADDRESS), ("probe-timeout", "3s")],
        }
    }

    pub(super) const fn go_package(self) -> GoPackage {
        match self {
            Self::Provisioner => GoPackage::Pflag,
            Self::Attacher
            | Self::Resizer
            | Self::Snapshotter
            | Self::SnapshotController
            | Self::Registrar
            | Self::LivenessProbe => GoPackage::Flag,
        }
    }

    /// The feature gates of the sidecar that this program has, too.
    pub(super) const fn feature_gates(self) -> &'static [FeatureGate] {
        match self {
            Self::Provisioner => &[FeatureGate::Topology, FeatureGate::VolumeAttributesClass],
            Self::Attacher => &[FeatureGate::MutableCsiNodeAllocatableCount],
            Self::Resizer => &[FeatureGate::AnnotateFsResize, FeatureGate::VolumeAttributesClass],
            Self::Snapshotter | Self::SnapshotController | Self::Registrar | Self::LivenessProbe => &[],
        }
    }
}

/// The Go package that parses the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GoPackage {
    /// `flag`: the first argument that is no flag ends the flags.
    Flag,
    /// `pflag`: flags may follow other arguments.
    Pflag,
}
