//! The rights of the process's account in the cluster, as the API server reports them in
//! SelfSubjectAccessReviews.

use std::collections::BTreeSet;

use cofferdam_cluster::SecretNamespaces;
use cofferdam_controllers::{
    Role,
    rbac::{PolicyRule, RuleScope},
};
use futures::{StreamExt as _, stream};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::{Api, api::PostParams};

/// Number of reviews in flight.
const MAX_IN_FLIGHT: usize = 8;

/// The namespaces to which rules refer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleNamespaces<'a> {
    /// Namespace of the journal, the restore marker and the orphan reports.
    pub(crate) process: &'a str,
    /// Namespace of the Leases; `None` without leader election.
    pub(crate) leases: Option<&'a str>,
    /// Namespaces of drivers' Secrets; `None` if the rights for Secrets are not checked.
    pub(crate) secrets: Option<&'a SecretNamespaces>,
}

/// Returns the verbs and resources that the rules allow and the API server denies to this account, such as
/// `patch persistentvolumes`, in the order of the rules.
pub(crate) async fn missing_rights(
    client: &kube::Client,
    rules: &[PolicyRule],
    namespaces: RuleNamespaces<'_>,
) -> Vec<String> {
    let rules = rules
        .iter()
        .flat_map(|rule| namespaces_of(rule, namespaces).into_iter().map(move |namespace| (rule, namespace)));
    let requests =
        rules.flat_map(|(rule, namespace)| rule.verbs.iter().map(move |verb| (rule, namespace, *verb)));
    stream::iter(requests)
        .map(|(rule, namespace, verb)| async move {
            let allowed = is_allowed(client, attributes(rule, namespace, verb)).await;
            (!allowed).then(|| describe(rule, namespace, verb))
        })
        .buffered(MAX_IN_FLIGHT)
        .filter_map(std::future::ready)
        .collect()
        .await
}

/// The command that prints the rules of these roles and namespaces. Without its flag for Secrets, it grants
/// those of the process's namespace.
pub(crate) fn render_command(roles: &BTreeSet<Role>, namespaces: RuleNamespaces<'_>) -> String {
    let mut command = "cofferdam render rbac".to_owned();
    for role in roles {
        command.push_str(&format!(" --role {role}"));
    }
    command.push_str(&format!(" --namespace {}", namespaces.process));
    if let Some(leases) = namespaces.leases.filter(|leases| *leases != namespaces.process) {
        command.push_str(&format!(" --leader-election-namespace {leases}"));
    }
    if let Some(secrets) = namespaces.secrets
        && *secrets != SecretNamespaces::only(namespaces.process)
        && *secrets != SecretNamespaces::Listed(BTreeSet::new())
    {
        command.push_str(&format!(" --secret-namespaces '{secrets}'"));
    }
    command
}

/// The namespaces of the rule's requests. An empty one stands for the whole cluster.
fn namespaces_of<'a>(rule: &PolicyRule, namespaces: RuleNamespaces<'a>) -> Vec<&'a str> {
    match rule.scope {
        RuleScope::Cluster => vec![""],
        RuleScope::OwnNamespace if rule.is_for_leases() => namespaces.leases.into_iter().collect(),
        RuleScope::OwnNamespace => vec![namespaces.process],
        RuleScope::DriverSecrets => match namespaces.secrets {
            None => Vec::new(),
            Some(SecretNamespaces::All) => vec![""],
            Some(SecretNamespaces::Listed(listed)) => listed.iter().map(String::as_str).collect(),
        },
    }
}

fn describe(rule: &PolicyRule, namespace: &str, verb: &str) -> String {
    let name = rule.name.map(|name| format!(" {name}")).unwrap_or_default();
    let place = if namespace.is_empty() { String::new() } else { format!(" in namespace {namespace}") };
    format!("{verb} {}{name}{place}", rule.resource)
}

fn attributes(rule: &PolicyRule, namespace: &str, verb: &str) -> ResourceAttributes {
    let (resource, subresource) = match rule.resource.split_once('/') {
        Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
        None => (rule.resource, None),
    };
    ResourceAttributes {
        verb: Some(verb.to_owned()),
        group: Some(rule.group.to_owned()),
        version: Some("v1".to_owned()),
        resource: Some(resource.to_owned()),
        subresource,
        name: rule.name.map(str::to_owned),
        namespace: (!namespace.is_empty()).then(|| namespace.to_owned()),
        ..Default::default()
    }
}

/// Reports if the account may send a request. A review avoids a denied request, which would be in the
/// cluster's audit log. An API without access reviews, as in dev, permits everything; if the review fails,
/// the request itself shows if it is permitted.
pub(crate) async fn is_allowed(client: &kube::Client, attributes: ResourceAttributes) -> bool {
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    let review = SelfSubjectAccessReview { spec, ..Default::default() };
    match Api::all(client.clone()).create(&PostParams::default(), &review).await {
        Ok(response) => response.status.is_some_and(|status| status.allowed),
        Err(error) => {
            tracing::debug!(%error, "an access review failed");
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_controllers::{provisioner, rbac::DriverPlacement, table};

    use super::*;

    #[test]
    fn the_command_grants_the_secrets_that_are_read() {
        let listed =
            |names: &[&str]| SecretNamespaces::Listed(names.iter().map(|n| (*n).to_owned()).collect());
        #[rustfmt::skip] // one row a case
        let cases = [
            (None, ""),
            (Some(SecretNamespaces::All), " --secret-namespaces '*'"),
            (Some(listed(&["a", "b"])), " --secret-namespaces 'a,b'"),
            (Some(listed(&["storage"])), ""),
            (Some(listed(&[])), ""),
        ];
        for (secrets, flag) in cases {
            let namespaces = RuleNamespaces { process: "storage", leases: None, secrets: secrets.as_ref() };
            let command = render_command(&[provisioner::ROLE].into(), namespaces);
            let expected = format!("cofferdam render rbac --role provisioner --namespace storage{flag}");
            assert_eq!(command, expected);
        }
    }

    #[test]
    fn the_command_names_the_namespace_of_the_leases() {
        for (leases, flag) in [
            (None, ""),
            (Some("storage"), ""),
            (Some("kube-system"), " --leader-election-namespace kube-system"),
        ] {
            let namespaces = RuleNamespaces { process: "storage", leases, secrets: None };
            let command = render_command(&[provisioner::ROLE].into(), namespaces);
            assert_eq!(
                command,
                format!("cofferdam render rbac --role provisioner --namespace storage{flag}")
            );
        }
    }

    #[test]
    fn rights_for_secrets_are_checked_where_they_are_granted() {
        let rules = table::rbac_rules(&Role::ALL.into(), DriverPlacement::ClusterWide);
        let rule = rules.iter().find(|rule| rule.resource == "secrets").unwrap();
        let checked = |secrets: Option<&SecretNamespaces>| {
            let namespaces = RuleNamespaces { process: "storage", leases: None, secrets };
            namespaces_of(rule, namespaces).into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        let listed = SecretNamespaces::Listed(["a".to_owned(), "b".to_owned()].into());
        assert_eq!(checked(Some(&SecretNamespaces::All)), [""]);
        assert_eq!(checked(Some(&listed)), ["a", "b"]);
        assert_eq!(checked(None), [""; 0]);
        assert_eq!(describe(rule, "a", "get"), "get secrets in namespace a");
    }
}
