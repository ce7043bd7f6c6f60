//! The sidecars that Cofferdam and a Go program implement.

/// A sidecar that both implementations have, its role, and the methods that it calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::suites) struct Slot {
    /// Name of the sidecar.
    pub(in crate::suites) name: &'static str,
    /// Role of Cofferdam that replaces it.
    pub(in crate::suites) role: &'static str,
    /// Capability of the controller without which the methods are not called.
    pub(in crate::suites) capability: &'static str,
    pub(in crate::suites) methods: &'static [&'static str],
    /// Prefix of the driver's name in the name of the Lease.
    lease_prefix: &'static str,
}

impl Slot {
    /// Name of the sidecar's Lease.
    pub(in crate::suites) fn lease(self, driver: &str) -> String {
        format!("{}{}", self.lease_prefix, driver.replace('.', "-"))
    }
}

pub(in crate::suites) const PROVISIONER: Slot = Slot {
    name: "csi-provisioner",
    role: "provisioner",
    capability: "CREATE_DELETE_VOLUME",
    methods: &["CreateVolume", "DeleteVolume"],
    lease_prefix: "",
};
pub(in crate::suites) const ATTACHER: Slot = Slot {
    name: "csi-attacher",
    role: "attacher",
    capability: "PUBLISH_UNPUBLISH_VOLUME",
    methods: &["ControllerPublishVolume", "ControllerUnpublishVolume"],
    lease_prefix: "external-attacher-leader-",
};
pub(in crate::suites) const RESIZER: Slot = Slot {
    name: "csi-resizer",
    role: "resizer",
    capability: "EXPAND_VOLUME",
    methods: &["ControllerExpandVolume"],
    lease_prefix: "external-resizer-",
};
pub(in crate::suites) const SLOTS: [Slot; 3] = [PROVISIONER, ATTACHER, RESIZER];
