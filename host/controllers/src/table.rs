//! The table of controllers, and what follows from it: the names of controllers in `--role`, and RBAC rules.
//! A new role is a folder with a `DeclaredController` and one line in this table.

use std::{collections::BTreeSet, str::FromStr};

use cofferdam_cluster::leader_election::sanitize_name;
use cofferdam_domain::DriverName;

use crate::{
    attach_detach::reconcile::AttachDetach,
    attacher::reconcile::Attacher,
    controller::Declaration,
    protection::reconcile::Protection,
    provisioner::reconcile::Provisioner,
    pv_controller::reconcile::PvController,
    rbac::{self, DriverPlacement, NodeTopologySource, PolicyRule},
    resizer::reconcile::Resizer,
    role::Role,
    settings::Settings,
    snapshot_controller::{self, reconcile::SnapshotController},
    snapshotter::reconcile::Snapshotter,
    startup_taint::reconcile::StartupTaint,
};

/// Every controller. The order is that of `--role` in help texts and of start-up.
pub const CONTROLLERS: &[Declaration] = &[
    Declaration::of::<Provisioner>(),
    Declaration::of::<Attacher>(),
    Declaration::of::<Resizer>(),
    Declaration::of::<PvController>(),
    Declaration::of::<Protection>(),
    Declaration::of::<AttachDetach>(),
    Declaration::of::<StartupTaint>(),
    Declaration::of::<Snapshotter>(),
    Declaration::of::<SnapshotController>(),
];

/// Error of parsing a name that is not the role of a controller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown role {name:?}: expected one of {}", Role::ALL.map(Role::as_str).join(", "))]
pub struct UnknownRole {
    /// The rejected name.
    pub name: String,
}

impl Role {
    /// Every role of [`CONTROLLERS`], in the order of the table.
    #[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
    pub const ALL: [Self; CONTROLLERS.len()] = {
        let mut roles = [Self::new(""); CONTROLLERS.len()];
        let mut index = 0;
        while index < roles.len() {
            roles[index] = CONTROLLERS[index].role;
            index += 1;
        }
        roles
    };
}

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(name: &str) -> Result<Self, UnknownRole> {
        Self::ALL
            .into_iter()
            .find(|role| role.as_str() == name)
            .ok_or_else(|| UnknownRole { name: name.to_owned() })
    }
}

/// The RBAC rules of a process with these roles: one for each scope, resource and object name. They are the
/// source of `cofferdam render rbac`, and the limit that simulations enforce on every request.
pub fn rbac_rules(roles: &BTreeSet<Role>, placement: DriverPlacement) -> Vec<PolicyRule> {
    rbac_rules_of(CONTROLLERS, roles, placement)
}

/// As [`rbac_rules`], for the roles and the options of a process: `--enable-distributed-snapshotting` needs the
/// right to list Nodes, wherever the drivers are.
pub fn rbac_rules_of_process(settings: &Settings, placement: DriverPlacement) -> Vec<PolicyRule> {
    let placement_of = |role: Role| match role == snapshot_controller::ROLE && settings.snapshots.distributed
    {
        true => DriverPlacement::NodeLocal(NodeTopologySource::Labels),
        false => placement,
    };
    let controllers = CONTROLLERS.iter().filter(|controller| settings.roles.contains(&controller.role));
    rbac::merge(controllers.map(|controller| (controller.rbac_rules)(placement_of(controller.role))))
}

/// As [`rbac_rules`], with another table of controllers.
pub(crate) fn rbac_rules_of(
    table: &[Declaration],
    roles: &BTreeSet<Role>,
    placement: DriverPlacement,
) -> Vec<PolicyRule> {
    let controllers = table.iter().filter(|controller| roles.contains(&controller.role));
    rbac::merge(controllers.map(|controller| (controller.rbac_rules)(placement)))
}

/// An election: the Leases that a process needs together, and the drivers with which it works while it holds
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Election {
    /// Names of the Leases, sorted, so that processes acquire them in the same order.
    pub leases: BTreeSet<String>,
    /// Names of the drivers.
    pub drivers: BTreeSet<DriverName>,
}

/// The elections of a process with these roles and drivers: one for each driver if every role needs a driver,
/// so that replicas share the drivers. Otherwise one: controllers without a driver exchange messages with
/// those of the drivers.
pub fn elections(roles: &BTreeSet<Role>, drivers: &[DriverName]) -> Vec<Election> {
    let election = |drivers: &[DriverName]| Election {
        leases: lease_names(roles, drivers),
        drivers: drivers.iter().cloned().collect(),
    };
    let mut controllers = CONTROLLERS.iter().filter(|controller| roles.contains(&controller.role));
    match controllers.all(|controller| controller.needs_driver) {
        true => drivers.iter().map(|driver| election(std::slice::from_ref(driver))).collect(),
        false => vec![election(drivers)],
    }
}

/// The names of the Leases of a process with these roles and drivers: those of the sidecars that the roles
/// replace.
pub fn lease_names(roles: &BTreeSet<Role>, drivers: &[DriverName]) -> BTreeSet<String> {
    let controllers = CONTROLLERS.iter().filter(|controller| roles.contains(&controller.role));
    let names = controllers.flat_map(|controller| {
        // A controller without a driver has one Lease, whatever the driver.
        let name =
            if controller.needs_driver { Vec::new() } else { vec![(controller.lease_name)(&"".into())] };
        let drivers = drivers.iter().filter(|_| controller.needs_driver);
        name.into_iter().chain(drivers.map(|driver| (controller.lease_name)(driver)))
    });
    names.map(|name| sanitize_name(&name)).collect()
}

#[cfg(test)]
mod tests {
    use cofferdam_cluster::SecretNamespaces;

    use super::*;
    use crate::{
        provisioner,
        rbac::{ResourceAttributes, STORAGE},
    };

    #[test]
    fn labels_of_contents_need_the_right_to_list_nodes_once() {
        let nodes = |distributed| {
            let mut settings = Settings { roles: [snapshot_controller::ROLE].into(), ..Settings::default() };
            settings.snapshots.distributed = distributed;
            let rules = rbac_rules_of_process(&settings, DriverPlacement::ClusterWide);
            let names: BTreeSet<_> =
                rules.iter().map(|rule| (rule.scope, rule.group, rule.resource, rule.name)).collect();
            assert_eq!(names.len(), rules.len(), "one rule for each resource");
            rules.iter().any(|rule| rule.resource == "nodes")
        };
        assert_eq!((nodes(false), nodes(true)), (false, true));
    }

    #[test]
    fn a_rule_allows_its_requests_and_no_others() {
        let rules = rbac_rules(&[provisioner::ROLE].into(), DriverPlacement::ClusterWide);
        let allowed = |verb, group, resource, namespace, name| {
            let request = ResourceAttributes { verb, group, resource, namespace, name };
            rules.iter().any(|rule| rule.allows(&request, "storage", &SecretNamespaces::only("arrays")))
        };
        assert!(allowed("create", "", "persistentvolumes", "", ""));
        assert!(allowed("get", "", "namespaces", "", "kube-system"));
        assert!(!allowed("get", "", "namespaces", "", "default"));
        assert!(allowed("patch", "", "configmaps", "storage", "x"));
        assert!(!allowed("patch", "", "configmaps", "default", "x"));
        assert!(allowed("get", "", "secrets", "arrays", "a"));
        assert!(!allowed("get", "", "secrets", "storage", "a"));
        assert!(!allowed("list", "", "secrets", "arrays", ""));
        assert!(
            allowed("patch", "", "persistentvolumeclaims", "a", "b"),
            "the selected node is removed for rescheduling"
        );
        assert!(
            !allowed("patch", "", "persistentvolumeclaims/status", "a", "b"),
            "pv-controller writes the status"
        );
        assert!(!allowed("get", STORAGE, "persistentvolumes", "", ""));
    }

    #[test]
    fn leases_are_those_of_the_sidecars() {
        let roles = ["provisioner", "attacher", "resizer", "protection"];
        let roles = roles.into_iter().map(|role| role.parse().unwrap()).collect();
        let drivers = ["ebs.csi.aws.com".into(), "array.".into()];
        let names: Vec<String> = lease_names(&roles, &drivers).into_iter().collect();
        let expected = [
            "array-X",
            "cofferdam-protection",
            "ebs-csi-aws-com",
            "external-attacher-leader-array-X",
            "external-attacher-leader-ebs-csi-aws-com",
            "external-resizer-array-X",
            "external-resizer-ebs-csi-aws-com",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn replicas_share_drivers_unless_a_role_needs_none() {
        let drivers: [DriverName; 2] = ["a.example.com".into(), "b.example.com".into()];
        let elections_of = |roles: &[&str]| -> Vec<(Vec<String>, usize)> {
            let roles = roles.iter().map(|role| role.parse().unwrap()).collect();
            let elections = elections(&roles, &drivers).into_iter();
            elections
                .map(|election| (election.leases.into_iter().collect(), election.drivers.len()))
                .collect()
        };
        let leases = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            elections_of(&["provisioner", "attacher"]),
            [
                (leases(&["a-example-com", "external-attacher-leader-a-example-com"]), 1),
                (leases(&["b-example-com", "external-attacher-leader-b-example-com"]), 1),
            ]
        );
        assert_eq!(
            elections_of(&["provisioner", "pv-controller"]),
            [(leases(&["a-example-com", "b-example-com", "cofferdam-pv-controller"]), 2)]
        );
        assert_eq!(elections_of(&["protection"]), [(leases(&["cofferdam-protection"]), 2)]);
    }

    #[test]
    fn roles_of_one_process_share_their_rules() {
        let rules = rbac_rules(&Role::ALL.into(), DriverPlacement::ClusterWide);
        let mut resources: Vec<_> =
            rules.iter().map(|rule| (rule.scope, rule.group, rule.resource)).collect();
        let all = resources.len();
        resources.dedup();
        assert_eq!(resources.len(), all);
    }
}
