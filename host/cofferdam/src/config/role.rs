//! Roles of a process: those that reconcile a cluster, those of a node, and the server role `csi-server`.

use std::{collections::BTreeSet, fmt, fmt::Write as _};

use cofferdam_controllers::{Role, table::CONTROLLERS};
use serde::{Deserialize, Deserializer, de};

/// A role that runs on a node beside kubelet. It has no controller and loads no driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum NodeRole {
    /// The Node service that kubelet calls.
    Node,
    /// Registers the driver with kubelet, as node-driver-registrar does.
    Registrar,
    /// Serves `/healthz` from the driver's Probe, as livenessprobe does.
    Liveness,
}

impl NodeRole {
    /// All node roles.
    pub(crate) const ALL: [Self; 3] = [Self::Node, Self::Registrar, Self::Liveness];

    /// The role's name, as in `--role`.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Registrar => "registrar",
            Self::Liveness => "liveness",
        }
    }
}

/// Default of `health-port` with the role `liveness`: that of livenessprobe.
const LIVENESS_PORT: u16 = 9808;

/// A role that serves the loaded drivers to CSI clients. It has no controller and needs no cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ServerRole {
    /// Serves every loaded driver with a configured socket to CSI clients on that socket.
    CsiServer,
}

impl ServerRole {
    /// All server roles.
    pub(crate) const ALL: [Self; 1] = [Self::CsiServer];

    /// The role's name, as in `--role`.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::CsiServer => "csi-server",
        }
    }
}

/// A name that is not a role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown role {name:?}: expected one of {}", Roles::names())]
pub(crate) struct UnknownRole {
    name: String,
}

/// The roles to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Roles {
    /// Roles that reconcile a cluster.
    pub(crate) cluster: BTreeSet<Role>,
    /// Roles of a node.
    pub(crate) node: BTreeSet<NodeRole>,
    /// Roles that serve the loaded drivers to CSI clients.
    pub(crate) servers: BTreeSet<ServerRole>,
    /// The first name that is no role; `None` if every name is a role. Each command reports the unknown name
    /// and lists the roles that the command accepts.
    pub(crate) unknown: Option<String>,
}

impl Roles {
    /// The names of all roles, separated by commas.
    pub(crate) fn names() -> String {
        let names = Role::ALL.map(Role::as_str).into_iter().chain(NodeRole::ALL.map(NodeRole::as_str));
        names.chain(ServerRole::ALL.map(ServerRole::as_str)).collect::<Vec<_>>().join(", ")
    }

    /// The names of these roles.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &'static str> {
        let names = self.cluster.iter().map(|role| role.as_str());
        let names = names.chain(self.node.iter().map(|role| role.as_str()));
        names.chain(self.servers.iter().map(|role| role.as_str()))
    }

    /// Help on the roles that reconcile a cluster: what each does, and the sidecar or the controller of
    /// kube-controller-manager that it replaces.
    pub(crate) fn help() -> String {
        let mut text = "Roles that reconcile a cluster:".to_owned();
        for controller in CONTROLLERS {
            let (role, help, replaces) = (controller.role, controller.help, controller.replaces);
            // Writing to a string cannot fail.
            let _ = write!(text, "\n  {role:14} {help};\n  {:14} replaces {replaces}", "");
        }
        text
    }

    /// Adds the role of a name.
    ///
    /// # Errors
    /// [`UnknownRole`]
    pub(crate) fn insert(&mut self, name: &str) -> Result<(), UnknownRole> {
        if let Some(role) = NodeRole::ALL.into_iter().find(|role| role.as_str() == name) {
            self.node.insert(role);
            return Ok(());
        }
        if let Some(role) = ServerRole::ALL.into_iter().find(|role| role.as_str() == name) {
            self.servers.insert(role);
            return Ok(());
        }
        self.cluster.insert(name.parse().map_err(|_| UnknownRole { name: name.to_owned() })?);
        Ok(())
    }

    fn insert_or_record_unknown(&mut self, name: String) {
        if self.insert(&name).is_err() {
            self.unknown.get_or_insert(name);
        }
    }

    /// Reports if the process has a role other than those of a node. Such a process loads the configured
    /// drivers.
    pub(crate) fn has_driver_roles(&self) -> bool {
        !self.cluster.is_empty() || !self.servers.is_empty()
    }

    /// Reports if the process has roles of a node and no others.
    pub(crate) fn is_node_only(&self) -> bool {
        !self.has_driver_roles() && !self.node.is_empty()
    }

    /// Default of `health-port`, as in the Go sidecars: 9808 with `liveness`, and 0, which is no port, with
    /// `registrar` only. `None` without these roles, which alone read it.
    pub(crate) fn default_health_port(&self) -> Option<u16> {
        match (self.node.contains(&NodeRole::Liveness), self.node.contains(&NodeRole::Registrar)) {
            (true, _) => Some(LIVENESS_PORT),
            (false, true) => Some(0),
            (false, false) => None,
        }
    }

    /// The first role that does not reconcile a cluster; node roles come before server roles. `None` if every
    /// role reconciles a cluster.
    pub(crate) fn first_role_without_cluster(&self) -> Option<&'static str> {
        let mut names = self.node.iter().map(|role| role.as_str());
        names.next().or_else(|| self.servers.first().map(|role| role.as_str()))
    }
}

impl<'de> Deserialize<'de> for Roles {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Roles;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of roles, such as [\"provisioner\"]")
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut items: A) -> Result<Roles, A::Error> {
                let mut roles = Roles::default();
                while let Some(name) = items.next_element::<String>()? {
                    roles.insert_or_record_unknown(name);
                }
                Ok(roles)
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<Roles, E> {
                let mut roles = Roles::default();
                roles.insert_or_record_unknown(name.to_owned());
                Ok(roles)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}
