//! The sidecars that Cofferdam and a Go program implement.

/// A sidecar that both implementations have, its role, and the methods that it calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    /// Name of the sidecar.
    pub(super) name: &'static str,
    /// Role of Cofferdam that replaces it.
    pub(super) role: &'static str,
    /// Capability of the controller without which the methods are not called.
    pub(super) capability: &'static str,
    pub(super) methods: &'static [&'static str],
    /// Prefix of the driver's name in the name of the Lease.
    lease_prefix: &'static str,
}

impl Slot {
    /// Name of the sidecar's Lease.
    pub(super) fn lease(self, driver: &str) -> String {
        format!("{}{}", self.lease_prefix, driver.replace('.', "-"))
    }
}

pub(super) const PROVISIONER: Slot = Slot {
    name: "csi-provisioner",
    role: "provisioner",
    capability: "CREATE_DELETE_VOLUME",
    methods: &["CreateVolume", "DeleteVolume"],
    lease_prefix: "",
};
pub(super) const ATTACHER: Slot = Slot {
    name: "csi-attacher",
    role: "attacher",
    capability: "PUBLISH_UNPUBLISH_VOLUME",
    methods: &["ControllerPublishVolume", "ControllerUnpublishVolume"],
    lease_prefix: "external-attacher-leader-",
};
pub(super) const RESIZER: Slot = Slot {
    name: "csi-resizer",
    role: "resizer",
    capability: "EXPAND_VOLUME",
    methods: &["ControllerExpandVolume"],
    lease_prefix: "external-resizer-",
};
pub(super) const SLOTS: [Slot; 3] = [PROVISIONER, ATTACHER, RESIZER];
