//! Policies that restrict accounts beyond their RBAC rules.
//!
//! RBAC has no rule that is restricted to a node. The token of a pod names the pod's node, and a
//! ValidatingAdmissionPolicy compares it with the objects of a request. Nor has RBAC a rule that is
//! restricted to the taints of Nodes.

use cofferdam_cluster::{deletion_freeze::RESTORE_MARKER_NAME, journal};
use cofferdam_controllers::rbac::NodeTopologySource;
use cofferdam_domain::names::{self, NODE_TOPOLOGY_KEY};
use serde_json::{Value, json};

const API_VERSION: &str = "admissionregistration.k8s.io/v1";
/// The node of the request's token. Kubernetes 1.32 and later name it in every token of a pod.
const TOKEN_NODE: &str = "request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][?0].orValue('')";
const CORE_GROUP: &str = "";
/// The claim's annotation with the node that the scheduler selected.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// The driver whose account a policy restricts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdmissionTarget<'a> {
    /// The driver's name.
    pub(crate) driver: &'a str,
    /// The namespace of the account.
    pub(crate) namespace: &'a str,
    /// The name of the account.
    pub(crate) service_account: &'a str,
}

/// Fields of a Node's specification except the taints.
const NODE_FIELDS: [&str; 6] =
    ["podCIDR", "podCIDRs", "providerID", "unschedulable", "configSource", "externalID"];

/// Requests that a policy checks, and its conditions for them.
struct PolicyChecks {
    /// The API group; empty for the core group.
    group: &'static str,
    operations: &'static [&'static str],
    resources: &'static [&'static str],
    /// A CEL expression, and the message if it is false.
    validations: Vec<(String, String)>,
    /// True if the conditions use the variable `node`, the node of the token.
    is_of_node: bool,
}

impl PolicyChecks {
    /// The validations of the policy.
    fn validations(self) -> Vec<Value> {
        if !self.is_of_node {
            let validations = self.validations.into_iter();
            return validations
                .map(|(expression, message)| json!({"expression": expression, "message": message}))
                .collect();
        }
        let token = json!({
            "expression": "variables.node != ''",
            "message": "the token names no node: expected a token of a pod, with \
                        authentication.kubernetes.io/node-name",
        });
        let of_objects = self.validations.into_iter().map(|(expression, message)| {
            let text = format!("'{message}; the token is of the node ' + variables.node");
            json!({"expression": expression, "message": message, "messageExpression": text})
        });
        [token].into_iter().chain(of_objects).collect()
    }
}

/// The policies of a node-local driver's account, each with its binding: they restrict it to the driver, and
/// to the node of the process. Only with the topology key of `NodeTopologySource::Name` does the node
/// affinity of a PersistentVolume name a node.
pub(crate) fn node_local_policies(target: &AdmissionTarget<'_>, topology: NodeTopologySource) -> Vec<Value> {
    [
        ("cofferdam-node-volumes", volume_checks(target, topology)),
        ("cofferdam-node-claims", claim_checks()),
        ("cofferdam-node-configmaps", config_map_checks(target)),
        ("cofferdam-node-snapshots", content_checks(target)),
    ]
    .into_iter()
    .flat_map(|(name, checks)| policy_and_binding(name, checks, target))
    .collect()
}

/// The policy of an account with the role `startup-taint`, with its binding: of Nodes, the account changes
/// only the start-up taint of the driver.
pub(crate) fn startup_taint_policies(target: &AdmissionTarget<'_>) -> Vec<Value> {
    policy_and_binding("cofferdam-startup-taint", node_checks(target), target).into()
}

fn policy_and_binding(name: &str, checks: PolicyChecks, target: &AdmissionTarget<'_>) -> [Value; 2] {
    let AdmissionTarget { driver, namespace, service_account } = target;
    let name = format!("{name}.{driver}");
    let node = json!({"name": "node", "expression": TOKEN_NODE});
    let variables: Vec<Value> = checks.is_of_node.then_some(node).into_iter().collect();
    let policy = json!({
        "apiVersion": API_VERSION,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [checks.group],
                "apiVersions": ["v1"],
                "operations": checks.operations,
                "resources": checks.resources,
            }]},
            "matchConditions": [{
                "name": "account",
                "expression": format!(
                    "request.userInfo.username == 'system:serviceaccount:{namespace}:{service_account}'"
                ),
            }],
            "variables": variables,
            "validations": checks.validations(),
        },
    });
    let binding = json!({
        "apiVersion": API_VERSION,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    });
    [policy, binding]
}

/// The object of a request before and after it, without those that are absent.
const OBJECTS: &str = "[object, oldObject].filter(o, o != null)";

/// PersistentVolumes are those of the driver, and on the token's node, if their node affinity names a node.
fn volume_checks(target: &AdmissionTarget<'_>, topology: NodeTopologySource) -> PolicyChecks {
    let (key, driver) = (NODE_TOPOLOGY_KEY, target.driver);
    let of_driver = (
        format!("{OBJECTS}.all(o, has(o.spec.csi) && o.spec.csi.driver == '{driver}')"),
        format!("expected a PersistentVolume of the CSI driver {driver}"),
    );
    let of_node = (
        format!(
            "{OBJECTS}.all(o, has(o.spec.nodeAffinity) && has(o.spec.nodeAffinity.required) && \
             o.spec.nodeAffinity.required.nodeSelectorTerms.size() > 0 && \
             o.spec.nodeAffinity.required.nodeSelectorTerms.all(t, has(t.matchExpressions) && \
             t.matchExpressions.exists(e, e.key == '{key}' && e.operator == 'In' && \
             e.values == [variables.node])))"
        ),
        "expected a PersistentVolume of the own node".to_owned(),
    );
    PolicyChecks {
        group: CORE_GROUP,
        operations: &["CREATE", "UPDATE", "DELETE"],
        resources: &["persistentvolumes", "persistentvolumes/status"],
        validations: match topology {
            NodeTopologySource::Name => vec![of_driver, of_node],
            NodeTopologySource::Labels | NodeTopologySource::CsiNode => vec![of_driver],
        },
        is_of_node: true,
    }
}

/// The condition that no annotations change except these.
fn unchanged_annotations_except(names: &[&str]) -> String {
    let is_excepted: Vec<String> = names.iter().map(|name| format!("k == '{name}'")).collect();
    let is_excepted = is_excepted.join(" || ");
    let unchanged = |one: &str, other: &str| {
        format!(
            "{one}.metadata.?annotations.orValue({{}}).all(k, {is_excepted} || \
             {other}.metadata.?annotations[?k] == optional.of({one}.metadata.annotations[k]))"
        )
    };
    format!("{} && {}", unchanged("object", "oldObject"), unchanged("oldObject", "object"))
}

/// Of claims, only the annotation of the selected node changes, to or from the token's node, and only before
/// the claim has a volume. The status, but not its phase and access modes, changes for claims whose selected
/// node it is.
fn claim_checks() -> PolicyChecks {
    let selected = |object: &str| format!("{object}.metadata.?annotations[?'{SELECTED_NODE}']");
    let unchanged = ["labels", "finalizers", "ownerReferences"]
        .map(|field| format!("object.metadata.?{field} == oldObject.metadata.?{field}"))
        .join(" && ");
    PolicyChecks {
        group: CORE_GROUP,
        operations: &["CREATE", "UPDATE", "DELETE"],
        resources: &["persistentvolumeclaims", "persistentvolumeclaims/status"],
        validations: vec![
            (
                "request.operation == 'UPDATE'".to_owned(),
                "expected no creation or deletion of a claim".to_owned(),
            ),
            (
                format!(
                    "request.operation != 'UPDATE' || object.spec == oldObject.spec && {unchanged} && {}",
                    unchanged_annotations_except(&[SELECTED_NODE]),
                ),
                format!("expected a change of the annotation {SELECTED_NODE} or of the status only"),
            ),
            (
                format!(
                    "request.operation != 'UPDATE' || request.?subResource.orValue('') != '' || [{}, {}]\
                     .all(n, n.orValue(variables.node) == variables.node)",
                    selected("object"),
                    selected("oldObject"),
                ),
                "expected a claim whose selected node is the own node, or none".to_owned(),
            ),
            (
                "request.operation != 'UPDATE' || request.?subResource.orValue('') != '' || \
                 oldObject.spec.?volumeName.orValue('') == ''"
                    .to_owned(),
                "expected a claim without a volume".to_owned(),
            ),
            (
                "request.?subResource.orValue('') == '' || object.?status.?phase == oldObject.?status.?phase && \
                 object.?status.?accessModes == oldObject.?status.?accessModes"
                    .to_owned(),
                "expected no change of the phase or of the access modes".to_owned(),
            ),
            (
                format!(
                    "request.?subResource.orValue('') == '' || [{}, {}].all(n, n == optional.of(variables.node))",
                    selected("object"),
                    selected("oldObject"),
                ),
                "expected a claim whose selected node is the own node".to_owned(),
            ),
        ],
        is_of_node: true,
    }
}

/// ConfigMaps are the journal's of the token's node. The process also creates the restore marker.
fn config_map_checks(target: &AdmissionTarget<'_>) -> PolicyChecks {
    let prefix = format!("{}{}.", journal::NAME_PREFIX, target.driver);
    let (marker, annotation) = (RESTORE_MARKER_NAME, journal::NODE_ANNOTATION);
    PolicyChecks {
        group: CORE_GROUP,
        operations: &["CREATE", "UPDATE", "DELETE"],
        resources: &["configmaps"],
        validations: vec![(
            format!(
                "request.operation == 'CREATE' && object.metadata.name == '{marker}' || {OBJECTS}.all(o, \
                 o.metadata.name.startsWith('{prefix}') && o.metadata.?annotations[?'{annotation}'] == \
                 optional.of(variables.node))"
            ),
            format!("expected an intent journal of the own node: {prefix}..., annotation {annotation}"),
        )],
        is_of_node: true,
    }
}

/// VolumeSnapshotContents are those of the driver whose label names the token's node. Only their status,
/// finalizers and the annotations of a creation change.
fn content_checks(target: &AdmissionTarget<'_>) -> PolicyChecks {
    let (label, driver) = (names::SNAPSHOT_MANAGED_BY, target.driver);
    let annotations = [names::SNAPSHOT_BEING_CREATED, names::SNAPSHOT_REQUEST];
    PolicyChecks {
        group: "snapshot.storage.k8s.io",
        operations: &["CREATE", "UPDATE", "DELETE"],
        resources: &["volumesnapshotcontents", "volumesnapshotcontents/status"],
        validations: vec![
            (
                "request.operation == 'UPDATE'".to_owned(),
                "expected no creation or deletion of a VolumeSnapshotContent".to_owned(),
            ),
            (
                format!(
                    "{OBJECTS}.all(o, o.spec.driver == '{driver}' && o.metadata.?labels[?'{label}'] == \
                     optional.of(variables.node))"
                ),
                format!(
                    "expected a VolumeSnapshotContent of the CSI driver {driver} and of the own node, by the \
                     label {label}"
                ),
            ),
            (
                format!(
                    "request.operation != 'UPDATE' || object.spec == oldObject.spec && \
                     object.metadata.?labels == oldObject.metadata.?labels && \
                     object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences && {}",
                    unchanged_annotations_except(&annotations),
                ),
                format!(
                    "expected a change of the status, of finalizers or of the annotations {} only",
                    annotations.join(" and ")
                ),
            ),
        ],
        is_of_node: true,
    }
}

/// Of Nodes, only the start-up taint of the driver is removed.
fn node_checks(target: &AdmissionTarget<'_>) -> PolicyChecks {
    let key = names::startup_taint(&target.driver.into());
    let unchanged = |part: &str, fields: &[&str]| {
        let fields = fields.iter();
        let equal = fields.map(|field| format!("object.{part}.?{field} == oldObject.{part}.?{field}"));
        equal.collect::<Vec<_>>().join(" && ")
    };
    let taints = |object: &str| format!("{object}.spec.?taints.orValue([])");
    PolicyChecks {
        group: CORE_GROUP,
        operations: &["CREATE", "UPDATE", "DELETE"],
        resources: &["nodes"],
        validations: vec![
            (
                "request.operation == 'UPDATE'".to_owned(),
                "expected no creation or deletion of a Node".to_owned(),
            ),
            (
                format!(
                    "request.operation != 'UPDATE' || {} && {}",
                    unchanged("metadata", &["labels", "annotations", "finalizers", "ownerReferences"]),
                    unchanged("spec", &NODE_FIELDS),
                ),
                "expected a change of the taints of the Node only".to_owned(),
            ),
            (
                format!(
                    "request.operation != 'UPDATE' || {new} == {old} || {new} == {old}.filter(t, t.key != '{key}')",
                    new = taints("object"),
                    old = taints("oldObject"),
                ),
                format!("expected the removal of the taint {key} only"),
            ),
        ],
        is_of_node: false,
    }
}
