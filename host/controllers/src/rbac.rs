//! RBAC rules: those that each controller declares, and the union of the rules of a process's controllers.

use std::collections::BTreeSet;

use cofferdam_cluster::SecretNamespaces;

/// Where a rule applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuleScope {
    /// The whole cluster: a ClusterRole.
    Cluster,
    /// The namespace of the process: an RBAC Role.
    OwnNamespace,
    /// The namespaces whose Secrets the process reads: an RBAC Role in each of them, or the ClusterRole if
    /// the process reads the Secrets of all namespaces. The account of a node-local driver's node has Roles
    /// for single Secrets, or none.
    DriverSecrets,
}

/// Allowed verbs on one resource: an RBAC PolicyRule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRule {
    /// Where the rule applies.
    pub scope: RuleScope,
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Plural name, with its subresource if it has one: `persistentvolumes/status`.
    pub resource: &'static str,
    /// Restricts the rule to the object of this name. `None` allows every object of the resource.
    pub name: Option<&'static str>,
    /// Verbs of the API, sorted.
    pub verbs: BTreeSet<&'static str>,
}

/// One request, as the API server's authorizer receives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ResourceAttributes<'a> {
    /// Verb of the API: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: &'a str,
    /// API group; empty for the core group.
    pub group: &'a str,
    /// Plural name, with its subresource if it has one.
    pub resource: &'a str,
    /// Namespace; empty for a cluster-scoped resource and for a request across namespaces.
    pub namespace: &'a str,
    /// Name of the object; empty for a request without one, such as `list` or `create`.
    pub name: &'a str,
}

impl PolicyRule {
    /// Returns true if the rule is for the Leases of leader election.
    pub fn is_for_leases(&self) -> bool {
        self.group == COORDINATION && self.scope == RuleScope::OwnNamespace
    }

    /// Returns true if the rule allows a request of a process in `own_namespace` that reads the Secrets of
    /// `secret_namespaces`.
    pub fn allows(
        &self,
        request: &ResourceAttributes<'_>,
        own_namespace: &str,
        secret_namespaces: &SecretNamespaces,
    ) -> bool {
        let in_scope = match self.scope {
            RuleScope::Cluster => true,
            RuleScope::OwnNamespace => request.namespace == own_namespace,
            RuleScope::DriverSecrets => secret_namespaces.contains(request.namespace),
        };
        in_scope
            && self.group == request.group
            && self.resource == request.resource
            && self.name.is_none_or(|name| name == request.name)
            && self.verbs.contains(request.verb)
    }
}

/// A rule before [`merge`]: a controller declares it, or every process needs it ([`EVERY_PROCESS`]).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    scope: RuleScope,
    group: &'static str,
    resource: &'static str,
    name: Option<&'static str>,
    verbs: &'static [&'static str],
}

/// The rules of a controller for one placement of drivers. They are a list of lists, so that placements can
/// share lists.
pub(crate) type RuleSet = &'static [&'static [Rule]];

impl Rule {
    /// A rule of the ClusterRole, for all objects of a resource.
    pub(crate) const fn cluster(
        group: &'static str,
        resource: &'static str,
        verbs: &'static [&'static str],
    ) -> Self {
        Self { scope: RuleScope::Cluster, group, resource, name: None, verbs }
    }

    /// A rule for ConfigMaps of the process's namespace.
    pub(crate) const fn own_config_maps(verbs: &'static [&'static str]) -> Self {
        Self { scope: RuleScope::OwnNamespace, group: CORE, resource: "configmaps", name: None, verbs }
    }

    /// The rule of a process that reads the Secrets of its drivers' classes and PersistentVolumes.
    pub(crate) const fn driver_secrets() -> Self {
        let scope = RuleScope::DriverSecrets;
        Self { scope, group: CORE, resource: "secrets", name: None, verbs: &["get"] }
    }

    /// A rule for Leases of the process's namespace.
    const fn own_leases(verbs: &'static [&'static str]) -> Self {
        Self { scope: RuleScope::OwnNamespace, group: COORDINATION, resource: "leases", name: None, verbs }
    }

    /// Restricts the rule to the object of this name.
    pub(crate) const fn named(self, name: &'static str) -> Self {
        Self { name: Some(name), ..self }
    }
}

/// The core API group.
pub(crate) const CORE: &str = "";
/// The API group of Leases.
pub(crate) const COORDINATION: &str = "coordination.k8s.io";
/// The API group of storage.
pub(crate) const STORAGE: &str = "storage.k8s.io";
/// API group of VolumeSnapshots.
pub(crate) const SNAPSHOT: &str = "snapshot.storage.k8s.io";
/// Verbs of a kind that is watched, and whose objects are also read one by one from the API server.
pub(crate) const READ: &[&str] = &["get", "list", "watch"];
/// Verbs of a kind that is watched.
pub(crate) const WATCH: &[&str] = &["list", "watch"];
/// The rule of a process that reads the labels of Nodes.
pub(crate) const WATCH_NODES: &[Rule] = &[Rule::cluster(CORE, "nodes", WATCH)];
/// The rule of a process that reads topology keys from CSINodes.
pub(crate) const WATCH_CSI_NODES: &[Rule] = &[Rule::cluster(STORAGE, "csinodes", WATCH)];

/// Rules of every process: the watches of [`crate::watches::common`], reads of single claims and
/// PersistentVolumes, the cluster's identity, events, the creation of the restore marker, and leader
/// election.
const EVERY_PROCESS: &[Rule] = &[
    Rule::cluster(CORE, "persistentvolumeclaims", READ),
    Rule::cluster(CORE, "persistentvolumes", READ),
    Rule::cluster(STORAGE, "storageclasses", WATCH),
    Rule::cluster(CORE, "namespaces", &["get"]).named("kube-system"),
    Rule::cluster(CORE, "events", &["create", "patch"]),
    // RBAC cannot restrict `create` to a name.
    Rule::own_config_maps(&["create"]),
    // Leader election.
    Rule::own_leases(&["create", "get", "update", "watch"]),
];

/// The placement of a process's drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DriverPlacement {
    /// No driver is node-local: the process manages volumes of all nodes.
    ClusterWide,
    /// The drivers are node-local: the process manages only volumes of its own node.
    NodeLocal(NodeTopologySource),
}

/// The source of a node-local driver's topology segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeTopologySource {
    /// The node's name: the driver's only topology key is `topology.cofferdam.dev/node`.
    Name,
    /// Labels of the Node whose keys the driver declares.
    Labels,
    /// Labels of the Node whose keys are in the CSINode, as for an existing CSI driver.
    CsiNode,
}

impl DriverPlacement {
    /// Every placement.
    pub const ALL: [Self; 4] = [
        Self::ClusterWide,
        Self::NodeLocal(NodeTopologySource::Name),
        Self::NodeLocal(NodeTopologySource::Labels),
        Self::NodeLocal(NodeTopologySource::CsiNode),
    ];
}

/// Merges [`EVERY_PROCESS`] with the rules that the controllers of a process declare. Returns one rule, with
/// the union of the verbs, for each scope, resource and object name.
pub(crate) fn merge(declared: impl IntoIterator<Item = RuleSet>) -> Vec<PolicyRule> {
    let declared = declared.into_iter().flatten().copied().flatten();
    let mut merged: Vec<PolicyRule> = Vec::new();
    for &Rule { scope, group, resource, name, verbs } in EVERY_PROCESS.iter().chain(declared) {
        let is_same = |rule: &&mut PolicyRule| {
            (rule.scope, rule.group, rule.resource, rule.name) == (scope, group, resource, name)
        };
        match merged.iter_mut().find(is_same) {
            Some(rule) => rule.verbs.extend(verbs),
            None => {
                let verbs = verbs.iter().copied().collect();
                merged.push(PolicyRule { scope, group, resource, name, verbs });
            }
        }
    }
    merged.sort_by_key(|rule| (rule.scope, rule.group, rule.resource, rule.name));
    merged
}
