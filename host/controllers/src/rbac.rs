//! What the roles may do in the cluster: the one table that `cofferdam render rbac` prints, that simulations enforce on every
//! request, and that a real API server is given.

use std::collections::BTreeSet;

use crate::Role;

/// Where a rule holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// In the whole cluster: a ClusterRole.
    Cluster,
    /// In the namespace of the intent journal: a Role.
    OwnNamespace,
}

/// Verbs on one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Where it holds.
    pub reach: Reach,
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
pub struct Attributes<'a> {
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

impl Rule {
    /// Whether a request is one of those that the rule allows to a process whose journal is in `own_namespace`.
    pub fn allows(&self, request: &Attributes<'_>, own_namespace: &str) -> bool {
        let here = match self.reach {
            Reach::Cluster => true,
            Reach::OwnNamespace => request.namespace == own_namespace,
        };
        here && self.group == request.group
            && self.resource == request.resource
            && self.name.is_none_or(|name| name == request.name)
            && self.verbs.contains(request.verb)
    }
}

type Row = (Reach, &'static str, &'static str, Option<&'static str>, &'static [&'static str]);

const READ: &[&str] = &["get", "list", "watch"];
const STORAGE: &str = "storage.k8s.io";

/// Every process: the cache that all roles share, the cluster's identity, events, at least about objects that cannot be read, and
/// the mark of a restored cluster, which whoever sees the restore writes before it goes on.
const EVERYBODY: &[Row] = &[
    (Reach::Cluster, "", "persistentvolumeclaims", None, READ),
    (Reach::Cluster, "", "persistentvolumes", None, READ),
    (Reach::Cluster, STORAGE, "storageclasses", None, &["list", "watch"]),
    (Reach::Cluster, "", "namespaces", Some("kube-system"), &["get"]),
    (Reach::Cluster, "", "events", None, &["create", "patch"]),
    // A name cannot be asked for in a rule about creation.
    (Reach::OwnNamespace, "", "configmaps", None, &["create"]),
];

/// external-provisioner's, but for the intent journal, the mark of a restored cluster and the report of orphans, which are
/// ConfigMaps of the own namespace.
const PROVISIONER: &[Row] = &[
    // The scheduler's choice of a node is taken back where there is no room.
    (Reach::Cluster, "", "persistentvolumeclaims", None, &["patch"]),
    (Reach::Cluster, "", "nodes", None, &["list", "watch"]),
    (Reach::Cluster, STORAGE, "csinodes", None, READ),
    (Reach::Cluster, "", "persistentvolumes", None, &["create", "delete", "patch"]),
    (Reach::OwnNamespace, "", "configmaps", None, &["create", "get", "list", "patch", "watch"]),
    (Reach::Cluster, STORAGE, "volumeattachments", None, &["list", "watch"]),
    (Reach::Cluster, STORAGE, "volumeattributesclasses", None, &["list", "watch"]),
];

/// The same on a node, for drivers whose storage is in it. Which node that is, its process knows by itself; nothing is attached, and
/// nothing reported.
const PROVISIONER_OF_NODE: &[Row] = &[
    // A node is chosen where nobody has, and taken back where there is no room.
    (Reach::Cluster, "", "persistentvolumeclaims", None, &["patch"]),
    (Reach::Cluster, "", "persistentvolumes", None, &["create", "delete", "patch"]),
    (Reach::OwnNamespace, "", "configmaps", None, &["create", "get", "list", "patch", "watch"]),
    (Reach::Cluster, STORAGE, "volumeattributesclasses", None, &["list", "watch"]),
];

/// Where that node is, beside its name.
const LABELS: &[Row] = &[(Reach::Cluster, "", "nodes", None, &["list", "watch"])];
const KEYS: &[Row] = &[(Reach::Cluster, STORAGE, "csinodes", None, &["list", "watch"])];

/// external-attacher's. Secrets are those that volumes name in `controllerPublishSecretRef`.
const ATTACHER: &[Row] = &[
    (Reach::Cluster, "", "persistentvolumes", None, &["patch"]),
    (Reach::Cluster, "", "secrets", None, &["get"]),
    (Reach::Cluster, STORAGE, "csinodes", None, &["list", "watch"]),
    (Reach::Cluster, STORAGE, "volumeattachments", None, &["get", "list", "patch", "watch"]),
    (Reach::Cluster, STORAGE, "volumeattachments/status", None, &["patch"]),
];

/// external-resizer's. Secrets are those that volumes name in `controllerExpandSecretRef`, and in annotations.
const RESIZER: &[Row] = &[
    (Reach::Cluster, "", "persistentvolumeclaims/status", None, &["patch"]),
    (Reach::Cluster, "", "persistentvolumes", None, &["patch"]),
    // Whether a volume is in use, for drivers that do not grow those that are.
    (Reach::Cluster, "", "pods", None, &["list", "watch"]),
    (Reach::Cluster, "", "secrets", None, &["get"]),
    (Reach::Cluster, STORAGE, "volumeattributesclasses", None, &["list", "watch"]),
];

/// PersistentVolumeController's.
const PV_CONTROLLER: &[Row] = &[
    (Reach::Cluster, "", "persistentvolumeclaims", None, &["patch"]),
    (Reach::Cluster, "", "persistentvolumeclaims/status", None, &["patch"]),
    (Reach::Cluster, "", "persistentvolumes", None, &["patch"]),
    (Reach::Cluster, "", "persistentvolumes/status", None, &["patch"]),
];

/// The protection controllers'.
const PROTECTION: &[Row] = &[
    (Reach::Cluster, "", "pods", None, &["list", "watch"]),
    (Reach::Cluster, "", "persistentvolumeclaims", None, &["patch"]),
    (Reach::Cluster, "", "persistentvolumes", None, &["patch"]),
    (Reach::Cluster, STORAGE, "volumeattributesclasses", None, &["get", "list", "patch", "watch"]),
];

/// AttachDetachController's.
const ATTACH_DETACH: &[Row] = &[
    (Reach::Cluster, "", "nodes", None, READ),
    (Reach::Cluster, "", "nodes/status", None, &["patch"]),
    (Reach::Cluster, "", "pods", None, &["list", "watch"]),
    (Reach::Cluster, STORAGE, "csidrivers", None, &["list", "watch"]),
    (Reach::Cluster, STORAGE, "csinodes", None, &["list", "watch"]),
    (Reach::Cluster, STORAGE, "volumeattachments", None, &["create", "delete", "get", "list", "watch"]),
];

/// Where the storage of a process' drivers is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Drivers {
    /// Anywhere in the cluster.
    Anywhere,
    /// In the node that the process is on.
    OfNode(Whereabouts),
}

/// How a driver says where its node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whereabouts {
    /// By the node's name alone: its one topology key is `topology.cofferdam.dev/node`.
    Name,
    /// By other labels of the Node too.
    Labels,
    /// By labels whose keys stand in the CSINode: an existing CSI driver.
    CsiNode,
}

impl Drivers {
    /// Every case.
    pub const ALL: [Self; 4] = [
        Self::Anywhere,
        Self::OfNode(Whereabouts::Name),
        Self::OfNode(Whereabouts::Labels),
        Self::OfNode(Whereabouts::CsiNode),
    ];
}

const fn rows(role: Role, drivers: Drivers) -> &'static [&'static [Row]] {
    use Whereabouts::{CsiNode, Labels, Name};
    match (role, drivers) {
        (Role::Provisioner, Drivers::Anywhere) => &[PROVISIONER],
        (Role::Provisioner, Drivers::OfNode(Name)) => &[PROVISIONER_OF_NODE],
        (Role::Provisioner, Drivers::OfNode(Labels)) => &[PROVISIONER_OF_NODE, LABELS],
        (Role::Provisioner, Drivers::OfNode(CsiNode)) => &[PROVISIONER_OF_NODE, LABELS, KEYS],
        (Role::Attacher, _) => &[ATTACHER],
        (Role::Resizer, Drivers::Anywhere | Drivers::OfNode(Name)) => &[RESIZER],
        (Role::Resizer, Drivers::OfNode(Labels)) => &[RESIZER, LABELS],
        (Role::Resizer, Drivers::OfNode(CsiNode)) => &[RESIZER, LABELS, KEYS],
        (Role::PvController, _) => &[PV_CONTROLLER],
        (Role::Protection, _) => &[PROTECTION],
        (Role::AttachDetach, _) => &[ATTACH_DETACH],
    }
}

/// The rules of a process with these roles: one for each resource, and no more than the roles use.
pub fn rules(roles: &BTreeSet<Role>, drivers: Drivers) -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    for &(reach, group, resource, name, verbs) in
        EVERYBODY.iter().chain(roles.iter().flat_map(|role| rows(*role, drivers)).copied().flatten())
    {
        let same = |rule: &&mut Rule| {
            (rule.reach, rule.group, rule.resource, rule.name) == (reach, group, resource, name)
        };
        match rules.iter_mut().find(same) {
            Some(rule) => rule.verbs.extend(verbs),
            None => {
                let verbs = verbs.iter().copied().collect();
                rules.push(Rule { reach, group, resource, name, verbs });
            }
        }
    }
    rules.sort_by_key(|rule| (rule.reach, rule.group, rule.resource, rule.name));
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_allows_its_requests_and_no_others() {
        let rules = rules(&[Role::Provisioner].into(), Drivers::Anywhere);
        let allowed = |verb, group, resource, namespace, name| {
            let request = Attributes { verb, group, resource, namespace, name };
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
        let rules = rules(&Role::ALL.into(), Drivers::Anywhere);
        let mut resources: Vec<_> =
            rules.iter().map(|rule| (rule.reach, rule.group, rule.resource)).collect();
        let all = resources.len();
        resources.dedup();
        assert_eq!(resources.len(), all);
    }
}
