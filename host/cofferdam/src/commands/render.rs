//! `cofferdam render`: manifests to apply before the roles run in a cluster.

mod admission_policy;
mod crds;

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_cluster::SecretNamespaces;
use cofferdam_controllers::{
    Role,
    rbac::{NodeTopologySource, PolicyRule, RuleScope},
    table,
};
use cofferdam_domain::dns::{is_dns_label, is_dns_subdomain};
use serde_json::{Value, json};

use crate::{
    cli::{AdmissionPolicyArg, DriverPlacementArg, RbacCommand, RenderCommand},
    config::{NodeRole, Roles, SecretNamespaceList},
    error::CommandError,
};
pub(crate) use admission_policy::{AdmissionTarget, node_local_policies, startup_taint_policies};

const RBAC_API_GROUP: &str = "rbac.authorization.k8s.io";

/// An error of `render`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RenderError {
    /// An invalid value of a flag.
    #[error("{0}")]
    Argument(String),
    /// The objects cannot be encoded.
    #[error("cannot write YAML: {0}")]
    Yaml(String),
}

impl From<RenderError> for CommandError {
    fn from(error: RenderError) -> Self {
        match error {
            RenderError::Argument(_) => Self::Usage(Box::new(error)),
            RenderError::Yaml(_) => Self::Other(Box::new(error)),
        }
    }
}

/// Renders the manifests for `kubectl apply`.
///
/// # Errors
/// [`CommandError`] for an unknown role or an invalid name.
pub(crate) fn render(command: &RenderCommand) -> Result<String, CommandError> {
    match command {
        RenderCommand::Rbac(command) => render_rbac(command),
        RenderCommand::Crds => Ok(crds::DEFINITIONS.join("---\n")),
        RenderCommand::AdmissionPolicy { driver, policy, namespace, service_account } => {
            check_namespace("--namespace", namespace)?;
            check_service_account(service_account)?;
            if !is_dns_subdomain(driver) {
                let message = format!(
                    "--driver: {driver:?}; expected the name of a CSI driver, such as pool.example.com"
                );
                return Err(RenderError::Argument(message).into());
            }
            let target = AdmissionTarget { driver, namespace, service_account };
            to_yaml(&match policy {
                AdmissionPolicyArg::NodeLocal => node_local_policies(&target, NodeTopologySource::Name),
                AdmissionPolicyArg::NodeLabels => node_local_policies(&target, NodeTopologySource::Labels),
                AdmissionPolicyArg::StartupTaint => startup_taint_policies(&target),
            })
        }
    }
}

fn render_rbac(command: &RbacCommand) -> Result<String, CommandError> {
    let RbacCommand {
        role,
        drivers,
        namespace,
        service_account,
        without_service_account,
        leader_election_namespace,
        secret_namespaces,
        secret,
    } = command;
    check_namespace("--namespace", namespace)?;
    let lease_namespace = leader_election_namespace.as_ref().unwrap_or(namespace);
    check_namespace("--leader-election-namespace", lease_namespace)?;
    check_service_account(service_account)?;
    let mut roles = Roles::default();
    match role.is_empty() {
        true => roles.cluster = Role::ALL.into(),
        false => role
            .iter()
            .try_for_each(|name| roles.insert(name))
            .map_err(|problem| RenderError::Argument(format!("--role: {problem}")))?,
    }
    let rules = rules(&roles, *drivers);
    // As in the setting, an empty list means no Secret, and empty items do not count.
    let listed: Option<Vec<&str>> = (!secret_namespaces.is_empty())
        .then(|| secret_namespaces.iter().map(|name| name.trim()).filter(|name| !name.is_empty()).collect());
    let has_secrets_flag = !secret.is_empty() || listed.as_ref().is_some_and(|listed| !listed.is_empty());
    if has_secrets_flag && !rules.iter().any(|rule| rule.scope == RuleScope::DriverSecrets) {
        let flag = if secret.is_empty() { "--secret-namespaces" } else { "--secret" };
        let message = format!("{flag}: none of the roles reads Secrets; expected no such flag");
        return Err(RenderError::Argument(message).into());
    }
    let readable = ReadableSecrets::from_flags(secret, listed.as_deref(), *drivers, namespace)?;
    let role_rules = RoleRules::new(&rules, &readable, namespace, lease_namespace);
    let mut objects = objects(role_rules, namespace, service_account);
    if !without_service_account {
        objects.insert(0, service_account_object(namespace, service_account));
    }
    Ok(format!("{}{}", header_comment(namespace), to_yaml(&objects)?))
}

fn to_yaml(objects: &[Value]) -> Result<String, CommandError> {
    let text = serde_saphyr::to_string_multiple(objects);
    Ok(text.map_err(|error| RenderError::Yaml(error.to_string()))?)
}

fn check_service_account(name: &str) -> Result<(), RenderError> {
    match is_dns_subdomain(name) {
        true => Ok(()),
        false => Err(RenderError::Argument(format!(
            "--service-account: {name:?}; expected at most 253 lower-case letters, digits, dashes and dots, \
             with a letter or digit at both ends of each part"
        ))),
    }
}

fn check_namespace(flag: &str, namespace: &str) -> Result<(), RenderError> {
    match is_dns_label(namespace) {
        true => Ok(()),
        false => Err(RenderError::Argument(format!(
            "{flag}: {namespace:?}; expected at most 63 lower-case letters, digits and dashes, with a letter or \
             digit at both ends"
        ))),
    }
}

/// The Secrets that the account may read.
enum ReadableSecrets {
    /// All Secrets of these namespaces.
    Namespaces(SecretNamespaces),
    /// Single Secrets, by namespace.
    Named(BTreeMap<String, BTreeSet<String>>),
}

impl ReadableSecrets {
    /// Evaluates the flags `--secret` and `--secret-namespaces`. Without them, the account reads the Secrets
    /// of its own namespace, or none if it is that of a node.
    fn from_flags(
        secrets: &[String],
        namespaces: Option<&[&str]>,
        drivers: DriverPlacementArg,
        own_namespace: &str,
    ) -> Result<Self, RenderError> {
        let mut named: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for secret in secrets {
            let parts = secret.split_once('/');
            let valid = parts.filter(|(namespace, name)| is_dns_label(namespace) && is_dns_subdomain(name));
            let (namespace, name) = valid.ok_or_else(|| {
                RenderError::Argument(format!("--secret: {secret:?}; expected NAMESPACE/NAME of a Secret"))
            })?;
            named.entry(namespace.to_owned()).or_default().insert(name.to_owned());
        }
        if !named.is_empty() {
            return Ok(Self::Named(named));
        }
        match (namespaces, drivers == DriverPlacementArg::Central) {
            (None, true) => Ok(Self::Namespaces(SecretNamespaces::only(own_namespace))),
            (None | Some([]), false) => Ok(Self::Named(named)),
            (Some(_), false) => Err(RenderError::Argument(
                "--secret-namespaces: the account of a node may read single Secrets only; \
                 expected --secret NAMESPACE/NAME"
                    .to_owned(),
            )),
            (Some(listed), true) => SecretNamespaceList::parse(listed.iter().copied())
                .map(|list| Self::Namespaces(list.0))
                .map_err(|error| RenderError::Argument(format!("--secret-namespaces: {error}"))),
        }
    }
}

/// Comment with the prerequisites. It names the namespace because `run` and `render` have different defaults.
fn header_comment(namespace: &str) -> String {
    format!(
        "# The namespace must exist: kubectl create namespace {namespace}\n\
         # Outside of it, pass it to the roles: cofferdam run --namespace {namespace}\n"
    )
}

/// RBAC rules of a process with these Cofferdam roles. Without a role that reconciles the cluster, the
/// process reads at most its Node.
pub(crate) fn rules(roles: &Roles, placement: DriverPlacementArg) -> Vec<PolicyRule> {
    let mut rules = match roles.cluster.is_empty() {
        true => Vec::new(),
        false => table::rbac_rules(&roles.cluster, placement.into()),
    };
    // The role `node` reads its Node once if topology keys of the driver's manifest are labels of the Node.
    let labels = matches!(placement, DriverPlacementArg::NodeLabels | DriverPlacementArg::CsiNode);
    if labels && roles.node.contains(&NodeRole::Node) {
        let nodes = |rule: &&mut PolicyRule| (rule.group, rule.resource) == ("", "nodes");
        match rules.iter_mut().find(nodes) {
            Some(rule) => {
                rule.verbs.insert("get");
            }
            None => rules.push(PolicyRule {
                scope: RuleScope::Cluster,
                group: "",
                resource: "nodes",
                name: None,
                verbs: ["get"].into(),
            }),
        }
    }
    rules
}

/// The rules of the account, by the objects that have them.
#[derive(Default)]
struct RoleRules {
    /// Rules of the ClusterRole.
    cluster: Vec<Value>,
    /// Rules of Roles, by namespace.
    namespaces: BTreeMap<String, Vec<Value>>,
}

impl RoleRules {
    fn new(
        rules: &[PolicyRule],
        readable: &ReadableSecrets,
        own_namespace: &str,
        lease_namespace: &str,
    ) -> Self {
        let mut all = Self::default();
        for rule in rules {
            let own_name: Vec<&str> = rule.name.into_iter().collect();
            match (rule.scope, readable) {
                (RuleScope::Cluster, _)
                | (RuleScope::DriverSecrets, ReadableSecrets::Namespaces(SecretNamespaces::All)) => {
                    all.cluster.push(rule_value(rule, &own_name));
                }
                (RuleScope::OwnNamespace, _) if rule.is_for_leases() => {
                    all.add(lease_namespace, rule_value(rule, &own_name));
                }
                (RuleScope::OwnNamespace, _) => all.add(own_namespace, rule_value(rule, &own_name)),
                (
                    RuleScope::DriverSecrets,
                    ReadableSecrets::Namespaces(SecretNamespaces::Listed(namespaces)),
                ) => {
                    namespaces.iter().for_each(|namespace| all.add(namespace, rule_value(rule, &own_name)));
                }
                (RuleScope::DriverSecrets, ReadableSecrets::Named(named)) => {
                    for (namespace, names) in named {
                        let names: Vec<&str> = names.iter().map(String::as_str).collect();
                        all.add(namespace, rule_value(rule, &names));
                    }
                }
            }
        }
        all
    }

    fn add(&mut self, namespace: &str, rule: Value) {
        self.namespaces.entry(namespace.to_owned()).or_default().push(rule);
    }
}

fn service_account_object(namespace: &str, account: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": account, "namespace": namespace},
    })
}

/// The roles with these rules, and their bindings to the account.
fn objects(rules: RoleRules, namespace: &str, account: &str) -> Vec<Value> {
    let mut objects = Vec::new();
    let mut add = |kind: &str, metadata: Value, rules: Vec<Value>| {
        let api_version = format!("{RBAC_API_GROUP}/v1");
        let role_name = metadata.get("name");
        objects.push(json!({
            "apiVersion": api_version, "kind": kind, "metadata": metadata, "rules": rules,
        }));
        objects.push(json!({
            "apiVersion": api_version,
            "kind": format!("{kind}Binding"),
            "metadata": metadata,
            "roleRef": {"apiGroup": RBAC_API_GROUP, "kind": kind, "name": role_name},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
        }));
    };
    // Installations in different namespaces must not share objects outside of their namespaces.
    let shared_name = format!("{namespace}:{account}");
    let RoleRules { cluster, mut namespaces } = rules;
    if !cluster.is_empty() {
        add("ClusterRole", json!({"name": shared_name}), cluster);
    }
    if let Some(rules) = namespaces.remove(namespace) {
        add("Role", json!({"name": account, "namespace": namespace}), rules);
    }
    for (namespace, rules) in namespaces {
        add("Role", json!({"name": shared_name, "namespace": namespace}), rules);
    }
    objects
}

/// A rule in the API's form, restricted to objects of these names if there are any.
pub(crate) fn rule_value(rule: &PolicyRule, names: &[&str]) -> Value {
    let mut value = json!({
        "apiGroups": [rule.group],
        "resources": [rule.resource],
        "verbs": rule.verbs,
    });
    if let Some(fields) = value.as_object_mut().filter(|_| !names.is_empty()) {
        fields.insert("resourceNames".to_owned(), json!(names));
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(role: &[&str], namespace: &str) -> Result<String, CommandError> {
        rendered_for(role, DriverPlacementArg::Central, namespace)
    }

    fn rendered_for(
        role: &[&str],
        drivers: DriverPlacementArg,
        namespace: &str,
    ) -> Result<String, CommandError> {
        rendered_with_secrets(role, drivers, namespace, &[], &[])
    }

    fn rendered_with_secrets(
        role: &[&str],
        drivers: DriverPlacementArg,
        namespace: &str,
        secret_namespaces: &[&str],
        secrets: &[&str],
    ) -> Result<String, CommandError> {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let command = RenderCommand::Rbac(RbacCommand {
            role: texts(role),
            drivers,
            namespace: namespace.to_owned(),
            service_account: "cofferdam".to_owned(),
            leader_election_namespace: None,
            without_service_account: false,
            secret_namespaces: texts(secret_namespaces),
            secret: texts(secrets),
        });
        render(&command)
    }

    #[test]
    fn the_rendered_rules_are_those_that_the_roles_use() {
        let text = rendered(&["provisioner"], "storage").unwrap();
        for expected in ["exist: kubectl create namespace storage\n", ": cofferdam run --namespace storage\n"]
        {
            assert!(text.contains(expected), "{text}");
        }
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        let kinds: Vec<_> = documents.iter().map(|object| object["kind"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]);
        let cluster = &documents[1];
        assert_eq!(cluster["metadata"]["name"], "storage:cofferdam");
        assert_eq!(documents[2]["roleRef"]["name"], "storage:cofferdam");
        assert_eq!(documents[3]["metadata"]["namespace"], "storage");
        let claims = cluster["rules"].as_array().unwrap().iter();
        let claims: Vec<_> = claims.filter(|rule| rule["resources"][0] == "persistentvolumeclaims").collect();
        assert_eq!(claims.len(), 1);
        assert_eq!(claims[0]["verbs"], json!(["get", "list", "patch", "watch"]));
        assert!(!text.contains("pods"));
        assert!(rendered(&[], "storage").unwrap().contains("pods"), "without --role all roles apply");
        let protection = rendered(&["protection"], "storage").unwrap();
        assert!(protection.contains("pods") && !protection.contains("- delete"), "{protection}");
        let attacher = rendered(&["attacher"], "storage").unwrap();
        assert!(attacher.contains("volumeattachments/status") && attacher.contains("csinodes"), "{attacher}");
        assert!(!protection.contains("secrets"), "{protection}");
    }

    #[test]
    fn the_policies_name_the_account_and_the_driver() {
        let command = |driver: &str, namespace: &str| RenderCommand::AdmissionPolicy {
            driver: driver.to_owned(),
            policy: AdmissionPolicyArg::NodeLocal,
            namespace: namespace.to_owned(),
            service_account: "pool".to_owned(),
        };
        let text = render(&command("pool.example.com", "storage")).unwrap();
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        let kinds: Vec<_> = documents.iter().map(|object| object["kind"].as_str().unwrap()).collect();
        let one = ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"];
        assert_eq!(kinds, [one, one, one, one].concat());
        for pair in documents.chunks(2) {
            assert_eq!(pair[0]["metadata"]["name"], pair[1]["spec"]["policyName"]);
            let condition = pair[0]["spec"]["matchConditions"][0]["expression"].as_str().unwrap();
            assert!(condition.contains("'system:serviceaccount:storage:pool'"), "{condition}");
        }
        assert!(documents[0].to_string().contains("o.spec.csi.driver == 'pool.example.com'"));
        for (driver, namespace, expected) in
            [("pool'", "storage", "--driver"), ("pool.example.com", "a.b", "--namespace")]
        {
            let error = render(&command(driver, namespace)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn the_leases_may_have_a_namespace_of_their_own() {
        let render_with = |lease_namespace: &str| {
            render(&RenderCommand::Rbac(RbacCommand {
                role: vec!["attacher".to_owned()],
                drivers: DriverPlacementArg::Central,
                namespace: "storage".to_owned(),
                service_account: "array".to_owned(),
                leader_election_namespace: Some(lease_namespace.to_owned()),
                without_service_account: false,
                secret_namespaces: Vec::new(),
                secret: Vec::new(),
            }))
        };
        let documents: Vec<Value> =
            serde_saphyr::from_multiple(&render_with("kube-system").unwrap()).unwrap();
        let with_leases: Vec<_> = documents
            .iter()
            .filter(|object| object["rules"].to_string().contains("leases"))
            .map(|object| &object["metadata"])
            .collect();
        assert_eq!(with_leases, [&json!({"name": "storage:array", "namespace": "kube-system"})]);
        let binding = documents.last().unwrap();
        assert_eq!(binding["metadata"]["namespace"], "kube-system");
        assert_eq!(binding["subjects"][0]["namespace"], "storage");
        let error = render_with("Kube").unwrap_err().to_string();
        assert!(error.starts_with("--leader-election-namespace: \"Kube\""), "{error}");
    }

    #[test]
    fn the_service_account_is_omitted_on_request() {
        let render_with = |without_service_account| {
            let text = render(&RenderCommand::Rbac(RbacCommand {
                role: vec!["attacher".to_owned()],
                drivers: DriverPlacementArg::Central,
                namespace: "storage".to_owned(),
                service_account: "array".to_owned(),
                without_service_account,
                leader_election_namespace: None,
                secret_namespaces: Vec::new(),
                secret: Vec::new(),
            }));
            serde_saphyr::from_multiple::<Value>(&text.unwrap()).unwrap()
        };
        let with_account = render_with(false);
        let without_account = render_with(true);
        assert_eq!(with_account[0]["kind"], "ServiceAccount");
        assert_eq!(without_account, with_account[1..], "the other objects are the same");
        assert_eq!(without_account[1]["subjects"][0]["name"], "array");
    }

    /// `kind namespace/name: Secrets` of every rendered role that allows reading Secrets.
    fn secret_rules(text: &str) -> Vec<String> {
        let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
        let field = |object: &Value, name: &str| object[name].as_str().unwrap_or_default().to_owned();
        let mut lines = Vec::new();
        for object in &documents {
            let rules = object["rules"].as_array().into_iter().flatten();
            for rule in rules.filter(|rule| rule["resources"] == json!(["secrets"])) {
                assert_eq!((&rule["verbs"], &rule["apiGroups"]), (&json!(["get"]), &json!([""])));
                let metadata = &object["metadata"];
                let place = format!("{}/{}", field(metadata, "namespace"), field(metadata, "name"));
                let names = rule.get("resourceNames").map_or("all".to_owned(), Value::to_string);
                let binding = documents.iter().find(|binding| {
                    field(binding, "kind") == format!("{}Binding", field(object, "kind"))
                        && binding["metadata"] == *metadata
                });
                let binding = binding.unwrap();
                assert_eq!(binding["roleRef"]["name"], metadata["name"]);
                assert_eq!(binding["subjects"][0]["namespace"], "storage");
                lines.push(format!("{} {place}: {names}", field(object, "kind")));
            }
        }
        lines
    }

    #[test]
    fn secrets_are_readable_in_the_given_namespaces_only() {
        use DriverPlacementArg::{Central, CsiNode, Node};
        #[rustfmt::skip] // one row a command: --role, --drivers, --secret-namespaces, --secret
        #[expect(clippy::type_complexity, reason = "written once")]
        let table: [(&str, DriverPlacementArg, &[&str], &[&str], &[&str]); 14] = [
            ("provisioner", Central, &[], &[], &["Role storage/cofferdam: all"]),
            ("attacher",    Central, &[], &[], &["Role storage/cofferdam: all"]),
            ("resizer",     Central, &["storage"], &[], &["Role storage/cofferdam: all"]),
            ("provisioner", Central, &["b", "a"], &[],
             &["Role a/storage:cofferdam: all", "Role b/storage:cofferdam: all"]),
            ("provisioner", Central, &["*"], &[], &["ClusterRole /storage:cofferdam: all"]),
            ("provisioner", Central, &[], &["a/y", "storage/z", "a/x"],
             &["Role storage/cofferdam: [\"z\"]", "Role a/storage:cofferdam: [\"x\",\"y\"]"]),
            ("provisioner", Node,    &[], &[], &[]),
            ("resizer",     CsiNode, &[], &[], &[]),
            ("provisioner", CsiNode, &[], &["a/x"], &["Role a/storage:cofferdam: [\"x\"]"]),
            ("protection",  Central, &[], &[], &[]),
            // An empty list, as the setting's: no Secret.
            ("provisioner", Central, &[""], &[], &[]),
            ("provisioner", Central, &["", " a "], &[], &["Role a/storage:cofferdam: all"]),
            ("provisioner", Node,    &[""], &[], &[]),
            ("protection",  Central, &[""], &[], &[]),
        ];
        for (role, drivers, namespaces, secrets, expected) in table {
            let text = rendered_with_secrets(&[role], drivers, "storage", namespaces, secrets).unwrap();
            assert_eq!(secret_rules(&text), expected, "{role}, {drivers:?}, {namespaces:?}, {secrets:?}");
        }
    }

    #[test]
    fn invalid_flags_for_secrets_are_rejected() {
        use DriverPlacementArg::{Central, Node};
        #[rustfmt::skip] // one row a command: --role, --drivers, --secret-namespaces, --secret
        #[expect(clippy::type_complexity, reason = "written once")]
        let table: [(&str, DriverPlacementArg, &[&str], &[&str], &str); 7] = [
            ("provisioner", Central, &[], &["x"],      "--secret: \"x\"; expected NAMESPACE/NAME"),
            ("provisioner", Central, &[], &["a.b/x"],  "--secret: \"a.b/x\"; expected NAMESPACE/NAME"),
            ("provisioner", Central, &[], &["a/../x"], "--secret: \"a/../x\"; expected NAMESPACE/NAME"),
            ("provisioner", Central, &["a", "*"], &[], "--secret-namespaces: \"a,*\" is not a list of"),
            ("provisioner", Central, &["A"], &[],      "--secret-namespaces: \"A\" is not a namespace"),
            ("provisioner", Node, &["a"], &[],         "--secret-namespaces: the account of a node"),
            ("protection", Central, &[], &["a/x"],     "--secret: none of the roles reads Secrets"),
        ];
        for (role, drivers, namespaces, secrets, expected) in table {
            let error = rendered_with_secrets(&[role], drivers, "storage", namespaces, secrets).unwrap_err();
            assert!(error.to_string().starts_with(expected), "{error}");
        }
    }

    /// Group, resource and verbs of every rendered rule.
    fn permissions(role: &[&str], drivers: DriverPlacementArg) -> Vec<String> {
        let text = rendered_for(role, drivers, "storage").unwrap();
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        let rules = documents.iter().filter_map(|object| object["rules"].as_array()).flatten();
        let strings = |value: &Value| {
            value
                .as_array()
                .unwrap()
                .iter()
                .map(|string| string.as_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        let permission = |rule: &Value| {
            let (group, resource) =
                (strings(&rule["apiGroups"]).join(","), strings(&rule["resources"]).join(","));
            format!("{group}/{resource} {}", strings(&rule["verbs"]).join(","))
        };
        rules.map(permission).collect()
    }

    #[test]
    fn node_roles_have_at_most_get_on_nodes() {
        for role in ["registrar", "liveness", "csi-server"] {
            assert_eq!(permissions(&[role], DriverPlacementArg::CsiNode), [""; 0], "{role}");
        }
        assert_eq!(permissions(&["node"], DriverPlacementArg::Central), [""; 0]);
        assert_eq!(permissions(&["node"], DriverPlacementArg::Node), [""; 0]);
        assert_eq!(permissions(&["node", "registrar"], DriverPlacementArg::NodeLabels), ["/nodes get"]);
        let combined = permissions(&["node", "provisioner"], DriverPlacementArg::NodeLabels);
        assert!(combined.contains(&"/nodes get,list,watch".to_owned()), "{combined:?}");
    }

    #[test]
    fn a_node_local_provisioner_reads_only_the_nodes_it_needs() {
        let rights = |drivers| permissions(&["provisioner"], drivers);
        #[rustfmt::skip]
        let name = [
            "/events create,patch", "/namespaces get", "/persistentvolumeclaims get,list,patch,watch",
            "/persistentvolumes create,delete,get,list,patch,watch",
            "snapshot.storage.k8s.io/volumesnapshotcontents get", "snapshot.storage.k8s.io/volumesnapshots get",
            "storage.k8s.io/csidrivers get", "storage.k8s.io/storageclasses list,watch",
            "storage.k8s.io/volumeattributesclasses list,watch", "/configmaps create,get,list,patch,watch",
            "coordination.k8s.io/leases create,get,update,watch",
        ];
        assert_eq!(rights(DriverPlacementArg::Node), name);
        let has = |drivers, right: &str| rights(drivers).contains(&right.to_owned());
        assert!(has(DriverPlacementArg::NodeLabels, "/nodes list,watch"));
        assert!(!has(DriverPlacementArg::NodeLabels, "storage.k8s.io/csinodes list,watch"));
        assert!(has(DriverPlacementArg::CsiNode, "storage.k8s.io/csinodes list,watch"));
        assert!(has(DriverPlacementArg::Central, "storage.k8s.io/csinodes get,list,watch"));
    }

    #[test]
    fn service_accounts_have_longer_names_than_namespaces() {
        let render = |account: &str| {
            let command = RenderCommand::Rbac(RbacCommand {
                role: Vec::new(),
                drivers: DriverPlacementArg::Central,
                namespace: "storage".to_owned(),
                service_account: account.to_owned(),
                leader_election_namespace: None,
                without_service_account: false,
                secret_namespaces: Vec::new(),
                secret: Vec::new(),
            });
            render(&command)
        };
        assert!(render("csi.array.example").unwrap().contains("name: csi.array.example"));
        assert!(render(&"a".repeat(253)).is_ok());
        for wrong in [&"a".repeat(254), "", ".", "a..b", "a.", "-a.b", "a.b-", "A", "a_b"] {
            assert!(render(wrong).unwrap_err().to_string().starts_with("--service-account: "), "{wrong}");
        }
        for namespace in ["a.b", &"a".repeat(64)] {
            assert!(
                rendered(&[], namespace).unwrap_err().to_string().starts_with("--namespace: "),
                "{namespace}"
            );
        }
    }

    #[test]
    fn unknown_roles_and_invalid_namespaces_are_rejected() {
        assert_eq!(
            rendered(&["resiser"], "storage").unwrap_err().to_string(),
            "--role: unknown role \"resiser\": expected one of provisioner, attacher, resizer, \
             pv-controller, protection, attach-detach, startup-taint, snapshotter, snapshot-controller, node, \
             registrar, liveness, csi-server"
        );
        assert!(
            rendered(&[], "Storage")
                .unwrap_err()
                .to_string()
                .starts_with("--namespace: \"Storage\"; expected")
        );
    }
}
