//! `cofferdam render`: manifests to apply before the roles run in a cluster.

use cofferdam_controllers::{
    Role,
    rbac::{DriverPlacement, NodeTopologySource, PolicyRule, RuleScope},
    table,
};
use serde_json::{Value, json};

use crate::{
    cli::{DriverPlacementArg, RenderCommand},
    config::{NodeRole, Roles},
    error::CommandError,
};

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
    let RenderCommand::Rbac { role, drivers, namespace, service_account } = command;
    if !is_dns_label(namespace) {
        return Err(RenderError::Argument(format!(
            "--namespace: {namespace:?}; expected at most 63 lower-case letters, digits and dashes, with a \
             letter or digit at both ends"
        ))
        .into());
    }
    if !is_dns_subdomain(service_account) {
        return Err(RenderError::Argument(format!(
            "--service-account: {service_account:?}; expected at most 253 lower-case letters, digits, dashes \
             and dots, with a letter or digit at both ends of each part"
        ))
        .into());
    }
    let mut roles = Roles::default();
    match role.is_empty() {
        true => roles.cluster = Role::ALL.into(),
        false => role
            .iter()
            .try_for_each(|name| roles.insert(name))
            .map_err(|problem| RenderError::Argument(format!("--role: {problem}")))?,
    }
    let objects = objects(&rules(&roles, *drivers), namespace, service_account);
    let text =
        serde_saphyr::to_string_multiple(&objects).map_err(|error| RenderError::Yaml(error.to_string()))?;
    Ok(format!("{}{text}", header_comment(namespace)))
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
fn rules(roles: &Roles, placement: DriverPlacementArg) -> Vec<PolicyRule> {
    let drivers = match placement {
        DriverPlacementArg::Central => DriverPlacement::ClusterWide,
        DriverPlacementArg::Node => DriverPlacement::NodeLocal(NodeTopologySource::Name),
        DriverPlacementArg::NodeLabels => DriverPlacement::NodeLocal(NodeTopologySource::Labels),
        DriverPlacementArg::CsiNode => DriverPlacement::NodeLocal(NodeTopologySource::CsiNode),
    };
    let mut rules = match roles.cluster.is_empty() {
        true => Vec::new(),
        false => table::rbac_rules(&roles.cluster, drivers),
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

/// Reports if text is a DNS label, as names of namespaces are.
fn is_dns_label(text: &str) -> bool {
    text.len() <= 63 && is_dns_part(text)
}

/// Reports if text is a DNS subdomain, as most names are. Kubernetes limits only its total length.
fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_dns_part)
}

fn is_dns_part(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !text.is_empty() && text.chars().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

fn objects(rules: &[PolicyRule], namespace: &str, account: &str) -> Vec<Value> {
    let mut objects = vec![json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": account, "namespace": namespace},
    })];
    for (reach, kind) in [(RuleScope::Cluster, "ClusterRole"), (RuleScope::OwnNamespace, "Role")] {
        let rules: Vec<Value> = rules.iter().filter(|rule| rule.scope == reach).map(rule).collect();
        if rules.is_empty() {
            continue;
        }
        // Installations in different namespaces must not share cluster-wide objects.
        let metadata = match reach {
            RuleScope::Cluster => json!({"name": format!("{namespace}:{account}")}),
            RuleScope::OwnNamespace => json!({"name": account, "namespace": namespace}),
        };
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
    }
    objects
}

fn rule(rule: &PolicyRule) -> Value {
    let mut value = json!({
        "apiGroups": [rule.group],
        "resources": [rule.resource],
        "verbs": rule.verbs,
    });
    if let (Some(name), Some(fields)) = (rule.name, value.as_object_mut()) {
        fields.insert("resourceNames".to_owned(), json!([name]));
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
        let command = RenderCommand::Rbac {
            role: role.iter().map(|role| (*role).to_owned()).collect(),
            drivers,
            namespace: namespace.to_owned(),
            service_account: "cofferdam".to_owned(),
        };
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
        assert!(attacher.contains("secrets") && !text.contains("secrets"), "{attacher}");
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
            "storage.k8s.io/storageclasses list,watch",
            "storage.k8s.io/volumeattributesclasses list,watch", "/configmaps create,get,list,patch,watch",
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
            let command = RenderCommand::Rbac {
                role: Vec::new(),
                drivers: DriverPlacementArg::Central,
                namespace: "storage".to_owned(),
                service_account: account.to_owned(),
            };
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
             pv-controller, protection, attach-detach, node, registrar, liveness, csi-server"
        );
        assert!(
            rendered(&[], "Storage")
                .unwrap_err()
                .to_string()
                .starts_with("--namespace: \"Storage\"; expected")
        );
    }
}
