//! What the roles may do in the cluster: the one table that `cofferdam render rbac` prints, that simulations
//! enforce on every request, and that a real API server is given.

use std::collections::BTreeSet;

use crate::Role;

/// Where a rule holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuleScope {
    /// In the whole cluster: a ClusterRole.
    Cluster,
    /// In the namespace of the intent journal: a Role.
    OwnNamespace,
}

/// Verbs on one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRule {
    /// Where it holds.
    pub scope: RuleScope,
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Plural name, with its subresource where it is one: `persistentvolumes/status`.
    pub resource: &'static str,
    /// The one object that it is about; any when absent.
    pub name: Option<&'static str>,
    /// Verbs of the API, sorted.
    pub verbs: BTreeSet<&'static str>,
}

/// One request, as the API's authorizer sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ResourceAttributes<'a> {
    /// Verb of the API: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: &'a str,
    /// API group; empty for the core group.
    pub group: &'a str,
    /// Plural name, with its subresource where it is one.
    pub resource: &'a str,
    /// Namespace; empty for what is cluster-scoped, and for all namespaces at once.
    pub namespace: &'a str,
    /// Name; empty for a collection.
    pub name: &'a str,
}

impl PolicyRule {
    /// Whether a request is one of those that the rule allows to a process whose journal is in
    /// `own_namespace`.
    pub fn allows(&self, request: &ResourceAttributes<'_>, own_namespace: &str) -> bool {
        let in_scope = match self.scope {
            RuleScope::Cluster => true,
            RuleScope::OwnNamespace => request.namespace == own_namespace,
        };
        in_scope
            && self.group == request.group
            && self.resource == request.resource
            && self.name.is_none_or(|name| name == request.name)
            && self.verbs.contains(request.verb)
    }
}

type Row = (RuleScope, &'static str, &'static str, Option<&'static str>, &'static [&'static str]);

const READ: &[&str] = &["get", "list", "watch"];
const STORAGE: &str = "storage.k8s.io";

/// Every process: the cache that all roles share, the cluster's identity, events, at least about objects that
/// cannot be read, and the mark of a restored cluster, which whoever sees the restore writes before it goes
/// on.
const EVERY_PROCESS: &[Row] = &[
    (RuleScope::Cluster, "", "persistentvolumeclaims", None, READ),
    (RuleScope::Cluster, "", "persistentvolumes", None, READ),
    (RuleScope::Cluster, STORAGE, "storageclasses", None, &["list", "watch"]),
    (RuleScope::Cluster, "", "namespaces", Some("kube-system"), &["get"]),
    (RuleScope::Cluster, "", "events", None, &["create", "patch"]),
    // A name cannot be asked for in a rule about creation.
    (RuleScope::OwnNamespace, "", "configmaps", None, &["create"]),
];

/// external-provisioner's, but for the intent journal, the mark of a restored cluster and the report of
/// orphans, which are ConfigMaps of the own namespace.
const PROVISIONER: &[Row] = &[
    // The scheduler's choice of a node is taken back where there is no room.
    (RuleScope::Cluster, "", "persistentvolumeclaims", None, &["patch"]),
    (RuleScope::Cluster, "", "nodes", None, &["list", "watch"]),
    (RuleScope::Cluster, STORAGE, "csinodes", None, READ),
    (RuleScope::Cluster, "", "persistentvolumes", None, &["create", "delete", "patch"]),
    (RuleScope::OwnNamespace, "", "configmaps", None, &["create", "get", "list", "patch", "watch"]),
    (RuleScope::Cluster, STORAGE, "volumeattachments", None, &["list", "watch"]),
    (RuleScope::Cluster, STORAGE, "volumeattributesclasses", None, &["list", "watch"]),
];

/// The same on a node, for drivers whose storage is in it. Which node that is, its process knows by itself;
/// nothing is attached, and nothing reported.
const NODE_LOCAL_PROVISIONER: &[Row] = &[
    // A node is chosen where nobody has, and taken back where there is no room.
    (RuleScope::Cluster, "", "persistentvolumeclaims", None, &["patch"]),
    (RuleScope::Cluster, "", "persistentvolumes", None, &["create", "delete", "patch"]),
    (RuleScope::OwnNamespace, "", "configmaps", None, &["create", "get", "list", "patch", "watch"]),
    (RuleScope::Cluster, STORAGE, "volumeattributesclasses", None, &["list", "watch"]),
];

/// Where that node is, beside its name.
const LIST_NODES: &[Row] = &[(RuleScope::Cluster, "", "nodes", None, &["list", "watch"])];
const LIST_CSI_NODES: &[Row] = &[(RuleScope::Cluster, STORAGE, "csinodes", None, &["list", "watch"])];

/// external-attacher's. Secrets are those that volumes name in `controllerPublishSecretRef`.
const ATTACHER: &[Row] = &[
    (RuleScope::Cluster, "", "persistentvolumes", None, &["patch"]),
    (RuleScope::Cluster, "", "secrets", None, &["get"]),
    (RuleScope::Cluster, STORAGE, "csinodes", None, &["list", "watch"]),
    (RuleScope::Cluster, STORAGE, "volumeattachments", None, &["get", "list", "patch", "watch"]),
    (RuleScope::Cluster, STORAGE, "volumeattachments/status", None, &["patch"]),
];

/// external-resizer's. Secrets are those that volumes name in `controllerExpandSecretRef`, and in
/// annotations.
const RESIZER: &[Row] = &[
    (RuleScope::Cluster, "", "persistentvolumeclaims/status", None, &["patch"]),
    (RuleScope::Cluster, "", "persistentvolumes", None, &["patch"]),
    // Whether a volume is in use, for drivers that do not grow those that are.
    (RuleScope::Cluster, "", "pods", None, &["list", "watch"]),
    (RuleScope::Cluster, "", "secrets", None, &["get"]),
    (RuleScope::Cluster, STORAGE, "volumeattributesclasses", None, &["list", "watch"]),
];

/// PersistentVolumeController's.
const PV_CONTROLLER: &[Row] = &[
    (RuleScope::Cluster, "", "persistentvolumeclaims", None, &["patch"]),
    (RuleScope::Cluster, "", "persistentvolumeclaims/status", None, &["patch"]),
    (RuleScope::Cluster, "", "persistentvolumes", None, &["patch"]),
    (RuleScope::Cluster, "", "persistentvolumes/status", None, &["patch"]),
];

/// The protection controllers'.
const PROTECTION: &[Row] = &[
    (RuleScope::Cluster, "", "pods", None, &["list", "watch"]),
    (RuleScope::Cluster, "", "persistentvolumeclaims", None, &["patch"]),
    (RuleScope::Cluster, "", "persistentvolumes", None, &["patch"]),
    (RuleScope::Cluster, STORAGE, "volumeattributesclasses", None, &["get", "list", "patch", "watch"]),
];

/// AttachDetachController's.
const ATTACH_DETACH: &[Row] = &[
    (RuleScope::Cluster, "", "nodes", None, READ),
    (RuleScope::Cluster, "", "nodes/status", None, &["patch"]),
    (RuleScope::Cluster, "", "pods", None, &["list", "watch"]),
    (RuleScope::Cluster, STORAGE, "csidrivers", None, &["list", "watch"]),
    (RuleScope::Cluster, STORAGE, "csinodes", None, &["list", "watch"]),
    (RuleScope::Cluster, STORAGE, "volumeattachments", None, &["create", "delete", "get", "list", "watch"]),
];

/// Where the storage of a process' drivers is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DriverPlacement {
    /// Anywhere in the cluster.
    ClusterWide,
    /// In the node that the process is on.
    NodeLocal(NodeTopologySource),
}

/// How a driver says where its node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeTopologySource {
    /// By the node's name alone: its one topology key is `topology.cofferdam.dev/node`.
    Name,
    /// By other labels of the Node too.
    Labels,
    /// By labels whose keys stand in the CSINode: an existing CSI driver.
    CsiNode,
}

impl DriverPlacement {
    /// Every case.
    pub const ALL: [Self; 4] = [
        Self::ClusterWide,
        Self::NodeLocal(NodeTopologySource::Name),
        Self::NodeLocal(NodeTopologySource::Labels),
        Self::NodeLocal(NodeTopologySource::CsiNode),
    ];
}

const fn rows(role: Role, drivers: DriverPlacement) -> &'static [&'static [Row]] {
    use NodeTopologySource::{CsiNode, Labels, Name};
    match (role, drivers) {
        (Role::Provisioner, DriverPlacement::ClusterWide) => &[PROVISIONER],
        (Role::Provisioner, DriverPlacement::NodeLocal(Name)) => &[NODE_LOCAL_PROVISIONER],
        (Role::Provisioner, DriverPlacement::NodeLocal(Labels)) => &[NODE_LOCAL_PROVISIONER, LIST_NODES],
        (Role::Provisioner, DriverPlacement::NodeLocal(CsiNode)) => {
            &[NODE_LOCAL_PROVISIONER, LIST_NODES, LIST_CSI_NODES]
        }
        (Role::Attacher, _) => &[ATTACHER],
        (Role::Resizer, DriverPlacement::ClusterWide | DriverPlacement::NodeLocal(Name)) => &[RESIZER],
        (Role::Resizer, DriverPlacement::NodeLocal(Labels)) => &[RESIZER, LIST_NODES],
        (Role::Resizer, DriverPlacement::NodeLocal(CsiNode)) => &[RESIZER, LIST_NODES, LIST_CSI_NODES],
        (Role::PvController, _) => &[PV_CONTROLLER],
        (Role::Protection, _) => &[PROTECTION],
        (Role::AttachDetach, _) => &[ATTACH_DETACH],
    }
}

/// The rules of a process with these roles: one for each resource, and no more than the roles use.
pub fn rules(roles: &BTreeSet<Role>, drivers: DriverPlacement) -> Vec<PolicyRule> {
    let mut rules: Vec<PolicyRule> = Vec::new();
    for &(reach, group, resource, name, verbs) in
        EVERY_PROCESS.iter().chain(roles.iter().flat_map(|role| rows(*role, drivers)).copied().flatten())
    {
        let same = |rule: &&mut PolicyRule| {
            (rule.scope, rule.group, rule.resource, rule.name) == (reach, group, resource, name)
        };
        match rules.iter_mut().find(same) {
            Some(rule) => rule.verbs.extend(verbs),
            None => {
                let verbs = verbs.iter().copied().collect();
                rules.push(PolicyRule { scope: reach, group, resource, name, verbs });
            }
        }
    }
    rules.sort_by_key(|rule| (rule.scope, rule.group, rule.resource, rule.name));
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_allows_its_requests_and_no_others() {
        let rules = rules(&[Role::Provisioner].into(), DriverPlacement::ClusterWide);
        let allowed = |verb, group, resource, namespace, name| {
            let request = ResourceAttributes { verb, group, resource, namespace, name };
            rules.iter().any(|rule| rule.allows(&request, "storage"))
        };
        assert!(allowed("create", "", "persistentvolumes", "", ""));
        assert!(allowed("get", "", "namespaces", "", "kube-system"));
        assert!(!allowed("get", "", "namespaces", "", "default"));
        assert!(allowed("patch", "", "configmaps", "storage", "x"));
        assert!(!allowed("patch", "", "configmaps", "default", "x"));
        assert!(!allowed("list", "", "secrets", "", ""));
        assert!(allowed("patch", "", "persistentvolumeclaims", "a", "b"), "a node may be chosen anew");
        assert!(
            !allowed("patch", "", "persistentvolumeclaims/status", "a", "b"),
            "the status is the binder's"
        );
        assert!(!allowed("get", STORAGE, "persistentvolumes", "", ""));
    }

    #[test]
    fn roles_of_one_process_share_their_rules() {
        let rules = rules(&Role::ALL.into(), DriverPlacement::ClusterWide);
        let mut resources: Vec<_> =
            rules.iter().map(|rule| (rule.scope, rule.group, rule.resource)).collect();
        let all = resources.len();
        resources.dedup();
        assert_eq!(resources.len(), all);
    }
}
